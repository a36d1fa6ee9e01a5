"""The jobs of a pipeline.

| file | what it owns |
|---|---|
| ``build`` | how jobs of one op and of an epoch are made; errors as step failures |
| ``epoch`` | the pipeline's own job: drain the available data, end with a checkpoint |
| ``streaming`` | all stages at once until stopped |
| ``launched`` | both kinds of run in a program launched elsewhere |
| ``snapshots`` | the savepoint job: a savepoint, a checkpoint at once, one that stops the stream, one removed |
| ``gate`` | what must hold before a run restores a chosen snapshot; previews, approvals, dry runs |
| ``blue_green`` | a fork compared with what readers find, readers swapped to it, a replay with it |
| ``run_config`` | config of runs: what they start from |
| ``dispose`` | deletes a savepoint; the scheduled ones that are kept |
| ``care`` | the care job: tables maintained, snapshots verified, a fork made to serve |
"""
