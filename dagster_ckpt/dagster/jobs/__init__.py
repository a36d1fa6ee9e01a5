"""The jobs of a pipeline.

| file | what it owns |
|---|---|
| ``build`` | how jobs of one op and of an epoch are made, their config, errors as step failures |
| ``runs`` | the pipeline's own jobs: an epoch of the available data, or all stages at once until stopped |
| ``launched`` | both kinds of run in a program launched elsewhere |
| ``snapshots`` | a savepoint, a checkpoint at once, one that stops the stream; one removed, expired ones too |
| ``gate`` | what must hold before a run restores a chosen snapshot; previews, approvals, dry runs |
| ``blue_green`` | a fork compared with what readers find, readers swapped to it, a replay with it |
| ``care`` | the care job: tables maintained, snapshots verified, a fork made to serve |
"""
