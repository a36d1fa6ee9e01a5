"""Programs as they are: each streaming query that one starts is a stage, with checkpoints and restores over all.

| file | what it owns |
|---|---|
| ``attachment`` | ``attach``: what becomes of each query that the program starts |
| ``attempt`` | the coordinator in the program's threads, from its first query to its end |
| ``writers`` | PySpark's ``DataStreamWriter`` as it says what it starts |
| ``queries`` | a query's name, place, sink and what it reads, from what its writer was told |
| ``steps`` | a query's function, known from others of the same text |
| ``program`` | the stages of a program as kept between its runs, and who reads whom |
| ``owner`` | the process that owns an attached pipeline: gone, or to be taken to be alive |
| ``cuts`` | cuts that belong together, and the snapshots of their stages |
| ``sinks`` | what a restore means for each kind of sink, and the sinks that go back |
| ``restore`` | directories and sinks put back from a snapshot, while the program does not run |
| ``idle`` | a snapshot while the program does not run |
| ``definitions`` | the program in Dagster: its pipeline, and what operates that |
| ``steps``, ``rewriting`` | a program's text with our decorators, as a diff |
| ``command`` | the command ``run``; ``restore`` and ``adopt`` of a program |
"""
