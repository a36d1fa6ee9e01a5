"""A pipeline watched from outside: by sensors, checks and other runs.

| file | what it owns |
|---|---|
| ``ownership`` | who is alive, who may run, what becomes of a dead attempt |
| ``approval`` | whether a restore, or a swap of readers, may be made that people were shown |
"""
