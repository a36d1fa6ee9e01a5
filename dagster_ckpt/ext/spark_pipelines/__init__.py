"""Spark declarative pipelines (``pyspark.pipelines``) as checkpointed pipelines.

| file | what it owns |
|---|---|
| ``command`` | the command ``adopt-project`` |
| ``elements`` | outputs and flows as data, named in full and as uids; files' calls on their session |
| ``registry`` | imports a project's files and takes what they register; the modules that those import |
| ``sql_files`` | definitions in SQL |
| ``reads`` | reads of datasets inside flows, answered by us |
| ``evaluate`` | runs flows' functions where they are registered |
| ``schemas`` | schemas of tables, rows brought into them |
| ``auto_cdc`` | Auto CDC flows: changes, SCD type 1 and 2 |
| ``trace`` | makes a project's graph; which options act, have no effect, are refused |
| ``graph`` | a project's graph, kept beside it; the spec file, the side file, the definition files |
| ``rows`` | rows of flows and views at run time |
| ``targets`` | where tables and sinks end |
| ``project`` | the public function; the pipeline of a graph |
| ``published`` | what is made of published tables: materialized views, views in Spark's catalog |
| ``left/`` | what Spark has left: checkpoints and tables, compared and rebuilt |
| ``adoption`` | what Spark has left as the first savepoint |
"""
