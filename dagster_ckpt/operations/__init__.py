"""Operations on checkpoints and savepoints, as functions: values in, frozen dataclasses out.

Neither Dagster nor click is known here; long work tells how far it is through a callback. Spark is needed to read
keys of state, and for nothing else.

| file | what it owns |
|---|---|
| ``deployment`` | where a deployment keeps its checkpoints, progress, errors of this package |
| ``records`` | the coordinator's record as operations read and change it |
| ``catalog`` | listing snapshots, and finding the one a person names |
| ``contents`` | the files a snapshot consists of, and reading single ones |
| ``statistics`` | counts, summary and history of a pipeline's checkpoints |
| ``verify`` | is every file of a snapshot there and intact |
| ``verify_tables`` | are the published files there and intact that a snapshot counts on |
| ``inspect`` | a stage's state at a snapshot, as DataFrames |
| ``diff`` | what two snapshots differ in |
| ``diff_state`` | keys of state that were added, changed, removed between two |
| ``diff_tables`` | two tables by their rows |
| ``offsets`` | how far two offsets are apart |
| ``preview`` | what a restore would do, and why it is refused |
| ``preview_hooks`` | what it would do with the states of hooks |
| ``preview_tables`` | what it would do to the tables |
| ``preview_sources`` | how far behind sources would be, whether they could read on, new readers |
| ``open_sink`` | sinks opened to be read: a pipeline's own, and those that serve its readers |
| ``load_table`` | a sink's published table, loaded |
| ``load_tables`` | all tables of a pipeline, as of one checkpoint that they all show |
| ``readers`` | whose tables readers find, of any pipeline |
| ``readers_comparison`` | what readers would find, compared with what they find |
| ``blue_green`` | a fork compared with what readers find, and readers swapped to it |
| ``replay`` | what a replay begins with, and side tables of earlier ones |
| ``export`` | a snapshot copied to another storage, self-contained |
| ``registration`` | how a savepoint from elsewhere enters the coordinator's record; import |
| ``adopt`` | a Spark checkpoint directory becomes a savepoint |
| ``audit`` | who restored, forked and disposed of what |
| ``dispose`` | removing a savepoint |
| ``facts`` | what is known about every stored file of a pipeline |
| ``clean`` | removing what checkpoints that are over have left |
| ``maintain`` | tables compacted and vacuumed, without what retained snapshots need |
| ``waiting`` | rows that sinks do not show yet, and why |
| ``horizon`` | for how long retained snapshots can still be restored |
| ``outside`` | what storage and tables have seen of a pipeline |
| ``doctor`` | the store held against the storage |
| ``repair`` | records built again from the storage |
"""
