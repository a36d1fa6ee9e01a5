"""User code on the driver that takes part in checkpoints (Flink: master hooks, operator coordinators).

Runs have hooks (``user_hook``); operator coordinators are reached by scenarios only.

| file | what it owns |
|---|---|
| ``hooks`` | what master hooks and driver-side coordinators promise |
| ``user_hook`` | a user's hook as a master hook, in a thread of its own |
"""
