"""Everything that touches PySpark, or the files Spark keeps. Executors import some of it: nothing heavy on top.

Running stages:

| file | what it owns |
|---|---|
| ``session`` | the Spark session and why each setting is there |
| ``directories`` | the only file that spells a path of the working directory |
| ``stage_query`` | a stage as a running query |
| ``slow_start`` | which failure of a query is cured by starting it again |
| ``epoch`` | an epoch run: drain in graph order, the barrier follows |
| ``gateway`` | how the coordinator reaches an epoch run's stages |
| ``attempt_restore`` | the working directory an attempt starts from |
| ``stage_snapshot`` | one stage's part of a checkpoint |
| ``log_restore`` | a stage's channel log, begun where the snapshot left it |
| ``reporting`` | what the runner tells its host |
| ``worker_start/`` | lets Spark's Python processes start in a third of the time |
| ``streaming/`` | streaming runs: all stages at once, barriers through the logs |

Capture and restore:

| file | what it owns |
|---|---|
| ``capture`` | which files a restart at batch N needs |
| ``checkpoint_files`` | the formats of Spark's checkpoint files |
| ``state_files`` | the same for ``state/`` |
| ``pins`` | keeps captured files alive while they are uploaded |
| ``upload`` | new files only, checksums recorded, manifest last |
| ``manifest`` | a stage's file list as stored |
| ``manifest_handles`` | the same as the shared-state registry wants it |
| ``snapshots`` | a stored snapshot, opened for reading |
| ``restore`` | a stage's working directory from a snapshot |
| ``local_copy`` | a local copy of the latest checkpoint |
| ``source_batch`` | what a source is told when it decides where barriers fall |
| ``rescale`` | another number of state partitions |
| ``parallel`` | the same work on many files at once |

Channels:

| file | what it owns |
|---|---|
| ``channel_log`` | the append-only log between stages |
| ``channel_entries`` | its entries |
| ``channel_schema`` | the schema of its rows |
| ``channel_cursor`` | where a reader's next micro-batch ends |
| ``channel_release`` | which barriers readers may pass |
| ``channel_source`` | a channel log as a Spark source |
| ``channel_sink`` | micro-batches into a channel log |
| ``channel_retention`` | what crashes leave behind |
| ``staged_files`` | whole-or-nothing file operations |

Tables:

| file | what it owns |
|---|---|
| ``tables`` | the tables of a pipeline's sinks |
| ``table_sink`` | first phase: staged as batches run |
| ``table_publish`` | second phase: visible once the checkpoint is complete |
| ``table_buckets`` | upsert tables |
| ``table_log`` | description, state and publish log |
| ``table_records`` | what a table persists beside its rows |
| ``table_roll_back`` | a table brought to the rows of a cut |
| ``table_fork`` | a fork's table, begun with the rows of a cut |
| ``table_retention`` | what a table keeps for restorable checkpoints |
"""
