"""Authoring of pipelines: stages, and how they are connected.

| file | what it owns |
|---|---|
| ``stages`` | the decorators of sources, stages and sinks, and what a stage function may ask for |
| ``stage_settings`` | what the decorators of stages take, typed; what settings ask of rows, opened like a target |
| ``judged_sinks`` | sinks that judge their rows, as a stage and a sink each |
| ``targets`` | where a source reads and where a sink's rows end: ``reads=...``, ``to=...`` |
| ``own_objects`` | objects with a state in each checkpoint: a pipeline's hooks, a stage's own (``state=``) |
| ``pipeline`` | how stages are connected |
"""
