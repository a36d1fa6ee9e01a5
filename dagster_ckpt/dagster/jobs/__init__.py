"""The jobs of a pipeline.

| file | what it owns |
|---|---|
| ``build`` | how jobs of one op and of an epoch are made; errors as step failures |
| ``epoch`` | the pipeline's own job: drain the available data, end with a checkpoint |
| ``streaming`` | all stages at once until stopped |
| ``launched`` | both kinds of run in a program launched elsewhere |
| ``snapshots`` | a savepoint, a checkpoint at once, a savepoint that stops the stream |
| ``restore`` | runs that start from a chosen snapshot; gated: once its preview is approved |
| ``gate`` | what must hold before a run restores a chosen snapshot |
| ``blue_green`` | a fork compared with what readers find, readers swapped to it, a replay with it |
| ``run_config`` | config of runs: what they start from |
| ``preview`` | what a restore would do |
| ``preview_report`` | that as Dagster shows it |
| ``dispose`` | deletes a savepoint; the scheduled ones that are kept |
| ``maintain`` | merges small files of tables, removes old ones |
"""
