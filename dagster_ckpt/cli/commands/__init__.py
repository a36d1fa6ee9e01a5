"""The commands of ``dagster-ckpt``, those that people use together in one file, with how their answer looks.

| file | what it owns |
|---|---|
| ``list`` | what can be restored from, and what ever was |
| ``history`` | the last checkpoints in a terminal, once or live (``top``); who restored, forked, disposed (``audit``) |
| ``page`` | the checkpoint page, as a file or served |
| ``check`` | whether the pipelines of the code could start, without Java |
| ``show`` | what one snapshot holds; a stage's state at it (``inspect``) |
| ``verify`` | every file read back and compared; the store and the storage compared (``doctor``) |
| ``diff`` | what two snapshots differ in; two published tables (``diff-tables``) |
| ``savepoint`` | taken by the pipeline's job, also to stop a stream; ``checkpoint`` |
| ``restore`` | a run of the pipeline's job from a snapshot; what it would do (``preview``) |
| ``blue_green`` | a ``fork`` begins with a snapshot, is compared, and readers are swapped to it; ``replay`` |
| ``export`` | a snapshot copied to another place; one from elsewhere becomes a savepoint (``import``, ``adopt``) |
| ``clean`` | what checkpoints that are over have left behind goes; a savepoint and its files (``dispose``) |
| ``maintain`` | tables: small files merged, old ones removed; rows requeued, published, set aside |
"""
