"""The port of sinks: what every place that rows end in must be able to do (Flink: Sink V2, TwoPhaseCommittingSink).

| file | what it owns |
|---|---|
| ``port`` | ``Sink``, its positions, cuts and answers |
| ``opening`` | sinks opened, for attempts and readers alike |
| ``accepts`` | ``Accepts``: what a target can hold, of columns and of rows, as rules in SQL (pure) |
| ``committables`` | ``PreparedBatch``: what a micro-batch has staged; what a checkpoint takes of it with it |
| ``phases`` | batches judged and prepared, cuts taken, committables published |
| ``staged_sink`` | ``StagedSink``: base of sinks that read their staged rows back when they publish |
| ``staged_rows`` | a micro-batch's rows in files that nobody sees yet; compared with what was staged, and read back |
| ``waiting`` | rows that wait while their sink changes: the rules of what follows, and rows set aside |
| ``for_each_checkpoint`` | ``FunctionSink``: a user's function gets the rows of each completed checkpoint |
| ``positions`` | how a position lies to batches and cuts, who may write, also before there is a table |
| ``rows`` | ``PublishedRows``: one state of a table, as Arrow, pandas, Polars, DuckDB or Spark |
| ``published`` | note of a stage's directory: what its sink had published when it was last asked |
"""
