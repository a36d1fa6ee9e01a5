"""Extensions: each folder knows one foreign system, stands behind a port of the kernel, and is named by no file of it.

| folder | system | port |
|---|---|---|
| ``tables`` | the engine of tables with versions, which the formats share | sinks |
| ``delta`` | Delta tables, by delta-rs | sinks |
| ``iceberg`` | Iceberg tables, by pyiceberg | sinks |
| ``sql`` | tables of PostgreSQL and SQLite | sinks |
| ``kafka`` | Kafka topics | sinks, and positions of sources |
| ``spark_pipelines`` | Spark declarative pipelines (``pyspark.pipelines``) | authoring, adoption |
| ``attach`` | programs that start Spark's streaming queries themselves | commands, programs |
| ``warm`` | a JVM that outlives a run; an archive of Java's classes | sessions |
| ``metrics`` | Prometheus and OpenTelemetry | facts of the page |
| ``wrapped`` | methods of PySpark that do something else for a while | |
"""
