"""Authoring of pipelines: stages, and how they are connected.

| file | what it owns |
|---|---|
| ``stages`` | the decorators of sources, stages and sinks, and what a stage function may ask for |
| ``stage_settings`` | what the decorators of stages take, typed |
| ``targets`` | where a sink's rows end: ``@spark_sink(to=...)`` |
| ``origins`` | where a source reads: ``@spark_source(reads=...)`` |
| ``hooks`` | the decorator of a class that takes part in checkpoints on the driver |
| ``derived`` | tables that are computed from published ones |
| ``catalog_view`` | views in Spark's catalog on published tables |
| ``chaining`` | what a stage's settings say of running it in one query with others |
| ``pipeline`` | how stages are connected |
"""
