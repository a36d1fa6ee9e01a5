"""Beginning of an attempt, in both kinds of run.

| file | what it owns |
|---|---|
| ``attempt`` | an attempt: its chains, its coordinator, its tables, its working directory |
| ``pipeline_setup`` | what an attempt is opened with; a session whose executors see its folders |
| ``gateway`` | how the coordinator reaches stages, as far as both kinds of run do the same |
| ``restore`` | the working directory an attempt starts from |
| ``mark`` | whose a working directory is, whether its last attempt ended cleanly, and a digest of what it left |
| ``sinks`` | the sinks of a pipeline: opened, written, cut, published |
| ``sinks_at_start`` | the sinks when an attempt starts: gone on with, begun without rows, brought to a cut |
| ``left_tables`` | tables of stages that have none now: what belongs to a checkpoint, for who has one again |
| ``showing`` | what readers are shown: changes held until all tables show them; rows of before, as the store tells |
| ``state_place`` | where a query's state is, and its checkpointLocation |
| ``stage_query`` | a stage as a running query |
| ``own_objects`` | objects that are stages' own: begun, and asked after each batch |
| ``table_clean_up`` | removal of table files nothing restorable needs |
| ``source_batch`` | what a source is told when it decides where barriers fall |
| ``rules_ahead`` | what the tables behind a stage cannot hold |
| ``participant`` | the port of what writes a stage's batches in its place |
"""
