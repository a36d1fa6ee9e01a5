"""Analyzer of query plans: whether a changed query may go on from the state and the positions of an earlier one.

Without it a query whose column, aggregate or source is another one of the same type would go on, in success, with wrong
rows: Spark compares types only.

| file | what it owns |
|---|---|
| ``tree`` | plans as trees, and their expressions as texts |
| ``operators`` | stateful operators, and the watermarks that bound them |
| ``columns`` | columns, fields of structs and aggregates of state, by their places |
| ``origins`` | columns of state, followed to those of sources |
| ``sources`` | sources in Spark's order; what plans of stages say of running them in one query |
| ``files`` | files that file sources have read: moved, written again, or not there yet |
| ``functions`` | digests of the user's code, which no plan shows; variables of transformWithState |
| ``facts`` | ``PlanFacts``: all of these, written down beside the state |
| ``rules`` | ``RULES``: which facts may not change, and what is said; compared at every start |
| ``refusals`` | queries that no run could get right: changed rows counted again, a watermark that does not arrive |
| ``errors`` | what ended a query, in one sentence: a changed query, or the user's own line |
"""
