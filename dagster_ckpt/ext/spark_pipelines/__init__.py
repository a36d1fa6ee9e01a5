"""Spark declarative pipelines (``pyspark.pipelines``) as checkpointed pipelines.

| file | what it owns |
|---|---|
| ``command`` | the command ``adopt-project`` |
| ``spec`` | the spec file, the side file, the definition files; the configuration in a session |
| ``elements`` | outputs and flows as data; names of datasets: qualified, and as uids |
| ``registry`` | imports a project's files and takes what they register; the modules that those import |
| ``sql_files`` | definitions in SQL |
| ``session_calls`` | what files do with their session while they are loaded |
| ``reads`` | reads of datasets inside flows, answered by us |
| ``evaluate`` | runs flows' functions where they are registered |
| ``schemas`` | schemas of tables, rows brought into them |
| ``auto_cdc`` | Auto CDC flows: changes, SCD type 1 and 2 |
| ``trace`` | makes a project's graph; which options act, have no effect, are refused |
| ``graph`` | a project's graph, kept beside it |
| ``rows`` | rows of flows and views at run time |
| ``targets`` | where tables and sinks end |
| ``build`` | the pipeline of a graph |
| ``project`` | the public function |
| ``published`` | what is made of published tables: materialized views, views in Spark's catalog |
| ``left/`` | what Spark has left: checkpoints and tables, compared and rebuilt |
| ``adoption`` | what Spark has left as the first savepoint |
"""
