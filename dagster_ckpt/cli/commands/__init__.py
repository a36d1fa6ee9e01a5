"""The commands of ``dagster-ckpt``, those that people use together in one file, with how their answer looks.

| file | what it owns |
|---|---|
| ``list`` | what can be restored from, and what ever was |
| ``history`` | last checkpoints: once, live (``top``), as a ``page``; who restored or disposed (``audit``) |
| ``show`` | what one snapshot holds; a stage's state at it (``inspect``) |
| ``verify`` | files read back and compared; store and storage (``doctor``); whether pipelines could start (``check``) |
| ``diff`` | what two snapshots differ in; two published tables (``diff-tables``) |
| ``savepoint`` | taken by the pipeline's job, copied (``export``), or from elsewhere (``import``, ``adopt``) |
| ``restore`` | a run of the pipeline's job from a snapshot; what it would do (``preview``) |
| ``blue_green`` | a ``fork`` begins with a snapshot, is compared, and readers are swapped to it; ``replay`` |
| ``maintain`` | tables kept small, rows requeued, published, set aside; what is over goes (``clean``, ``dispose``) |
"""
