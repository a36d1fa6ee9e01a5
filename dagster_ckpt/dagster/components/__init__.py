"""A pipeline in YAML, for projects that ``dg`` manages.

| file | what it owns |
|---|---|
| ``checkpointed_pipeline`` | the component: its attributes, and the definitions they become |
| ``attributes`` | the groups of attributes |
| ``scaffolder`` | what ``dg scaffold defs`` writes |
"""
