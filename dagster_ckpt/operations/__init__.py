"""Operations on checkpoints and savepoints, as functions: values in, frozen dataclasses out.

Neither Dagster nor click is known here; long work tells how far it is through a callback. Spark is needed to read
keys of state, and for nothing else. Without this folder a deployment would run and nobody could look into it.

| file | what it owns |
|---|---|
| ``deployment`` | where a deployment keeps its checkpoints, progress, errors of this package |
| ``snapshots/`` | snapshots listed, verified, compared, copied, brought in |
| ``readers/`` | published tables as readers find them: loaded, compared, swapped, replayed |
| ``restores/`` | what a restore would do, and for how long it can be done |
| ``care/`` | store, storage and tables kept in order |
"""
