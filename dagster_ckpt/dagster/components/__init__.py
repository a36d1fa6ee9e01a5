"""A pipeline in YAML, for projects that ``dg`` manages.

| file | what it owns |
|---|---|
| ``checkpointed_pipeline`` | the component: its attributes, the definitions they become, its scaffold |
| ``attributes`` | the groups of attributes |
"""
