"""The commands of ``dagster-ckpt``, one file each, with how their answer looks.

| file | what it owns |
|---|---|
| ``list`` | what can be restored from, and what ever was |
| ``history`` | the last checkpoints in a terminal, once or live (``top``) |
| ``page`` | the checkpoint page, as a file or served |
| ``audit`` | who restored, forked and disposed of what |
| ``check`` | whether the pipelines of the code could start, without Java |
| ``show`` | what one snapshot holds |
| ``verify`` | every file read back and compared |
| ``inspect`` | a stage's state at a snapshot |
| ``diff`` | what two snapshots differ in |
| ``diff_tables`` | which rows two tables differ in |
| ``preview`` | what a restore would do |
| ``checkpoint`` | taken at once by the pipeline's job |
| ``publish`` | rows that wait for a sink: published, or set aside |
| ``savepoint`` | taken by the pipeline's job, also to stop a stream |
| ``restore`` | a run of the pipeline's job from a snapshot |
| ``fork`` | another pipeline begins with a snapshot of this one |
| ``blue_green`` | a fork compared with what readers find, and readers swapped to it |
| ``replay`` | a fork runs from the nearest snapshot before a moment |
| ``dispose`` | a savepoint and its files go |
| ``export`` | a snapshot copied to another place |
| ``import_`` | a snapshot from elsewhere becomes a savepoint of this deployment |
| ``adopt`` | Spark's own checkpoint directories become a savepoint |
| ``clean`` | what checkpoints that are over have left behind |
| ``maintain`` | small files of tables merged, old ones removed |
| ``doctor`` | the store and the storage compared |
"""
