"""Authoring of pipelines: stages, and how they are connected.

| file | what it owns |
|---|---|
| ``stages`` | the decorators of sources, stages and sinks, and what a stage function may ask for |
| ``stage_settings`` | what the decorators of stages take, typed; what settings ask of rows, opened like a target |
| ``judged_sinks`` | sinks that judge their rows, as a stage and a sink each |
| ``targets`` | where a source reads and where a sink's rows end: ``reads=...``, ``to=...`` |
| ``hooks`` | a class that takes part in checkpoints on the driver; a stage's context |
| ``stage_state`` | a class of objects that are a stage's own, one or an object a subtask |
| ``pipeline`` | how stages are connected |
"""
