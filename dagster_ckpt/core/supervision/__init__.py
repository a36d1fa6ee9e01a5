"""A pipeline watched from outside: by sensors, checks and other runs.

| file | what it owns |
|---|---|
| ``ownership`` | who is alive, who may run, what becomes of a dead attempt; whether a failed run is started again |
| ``approval`` | whether a restore, or a swap of readers, may be made that people were shown |
| ``reporting`` | which of a stream's checkpoints become events of their own; the partitions of that asset |
| ``alarms`` | failures since the last completion, and when people are told: once per episode |
"""
