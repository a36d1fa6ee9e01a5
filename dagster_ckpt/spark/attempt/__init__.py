"""Beginning of an attempt, in both kinds of run.

| file | what it owns |
|---|---|
| ``attempt`` | an attempt: its chains, its coordinator, its tables, its working directory |
| ``pipeline_setup`` | what an attempt is opened with, its session; how the coordinator reaches its stages |
| ``restore`` | the working directory an attempt starts from |
| ``earlier_attempts`` | whose a working directory is, how its last attempt ended; tables that no stage has now |
| ``sinks`` | the sinks of a pipeline: opened, written, cut, published |
| ``sinks_at_start`` | the sinks when an attempt starts: gone on with, begun without rows, brought to a cut |
| ``showing`` | what readers are shown: changes held until all tables show them; rows of before, as the store tells |
| ``query_state`` | a query's state and checkpointLocation; batches as sources are told |
| ``own_objects`` | objects that are stages' own, begun with their states and noted batch by batch |
| ``stage_query`` | a stage as a running query |
| ``fan_out`` | sinks that take the batches of the query whose rows they read |
| ``participant`` | the port of what writes a stage's batches in its place |
"""
