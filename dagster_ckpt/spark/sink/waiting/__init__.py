"""Rows that wait for a checkpoint while their sink changes: compared with what it is now, before anything runs.

Without it, rows that were staged for one table would be shown in another one: in wrong columns, partitions, or twice
by a key.

| file | what it owns |
|---|---|
| ``rules`` | ``RULES``: the one table of rules for all sinks, and what each answers |
| ``aside`` | rows that cannot be shown, written to a file beside the tables, and passed over |
"""
