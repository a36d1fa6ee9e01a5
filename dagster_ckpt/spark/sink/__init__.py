"""The port of sinks: what every place that rows end in must be able to do (Flink: Sink V2, TwoPhaseCommittingSink).

| file | what it owns |
|---|---|
| ``port`` | ``Sink``, its positions, cuts and answers |
| ``committables`` | ``PreparedBatch``: what a micro-batch has staged, and where it is written down |
| ``staging`` | a micro-batch's rows as plain Parquet files that nobody sees yet |
| ``phases`` | batches prepared, cuts taken, committables published |
| ``published`` | note of a stage's directory: what its sink had published when it was last asked |
"""
