"""A pipeline watched from outside: by sensors, checks and other runs.

| file | what it owns |
|---|---|
| ``ownership`` | who is alive, who may run, what becomes of an attempt that may be dead |
| ``approval`` | whether a restore may be made that a preview was shown of |
| ``swap`` | whether readers may be swapped to another pipeline's tables, and what approves it |
| ``partitions`` | which partitions of the checkpoints asset are missing or left over |
| ``reporting`` | which of a stream's checkpoints become events of their own |
| ``alarms`` | failures since the last completion, and when people are told: once per episode |
| ``restarts`` | whether a pipeline whose run failed is started again, and when |
"""
