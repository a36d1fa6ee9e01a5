"""Spark declarative pipelines (``pyspark.pipelines``) as checkpointed pipelines.

| file | what it owns |
|---|---|
| ``command`` | the command ``adopt-project`` |
| ``spec`` | the spec file, the side file, the definition files |
| ``naming`` | names of datasets: qualified, and as uids |
| ``elements`` | outputs and flows as data |
| ``registry`` | imports a project's files and takes what they register |
| ``sql_files`` | definitions in SQL |
| ``session_calls`` | what files do with their session while they are loaded |
| ``wrapping`` | methods of Spark's classes, replaced while a block runs |
| ``reads`` | reads of datasets inside flows, answered by us |
| ``catalog_tables`` | tables of Spark's catalog that a plan reads |
| ``evaluate`` | runs flows' functions where they are registered |
| ``schemas`` | schemas of tables, rows brought into them |
| ``auto_cdc`` | Auto CDC flows: changes, SCD type 1 |
| ``history`` | Auto CDC flows: SCD type 2 |
| ``options`` | which options act, have no effect, are refused |
| ``refused_rows`` | what Spark or a format would refuse once a flow runs |
| ``settings`` | the project's configuration in a session |
| ``imported`` | modules that files import |
| ``trace`` | makes a project's graph |
| ``graph`` | a project's graph, kept beside it |
| ``rows`` | rows of flows and views at run time |
| ``targets`` | where tables and sinks end |
| ``build`` | the pipeline of a graph |
| ``project`` | the public function |
| ``spark_logs`` | logs of files that Spark keeps |
| ``source_order`` | numbers of a flow's sources, in Spark's plan and in ours |
| ``flow_checkpoints`` | checkpoints that Spark has left, compared and rebuilt |
| ``parquet_left`` | Parquet tables that Spark has filled |
| ``delta_left`` | Delta tables that Spark has filled |
| ``table_rows`` | which of those can be taken over, their rows staged for ours |
| ``adoption`` | what Spark has left as the first savepoint |
"""
