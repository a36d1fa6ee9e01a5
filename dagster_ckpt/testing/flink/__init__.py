"""Parts of Flink's protocol that scenarios reach and no run does. Without this folder runs lose nothing.

In a run a stage is one subtask, Spark redistributes the state of its partitions itself, and no operator coordinator
sends events.

| file | what it owns |
|---|---|
| ``key_groups`` | which subtask owns which part of keyed state; in-flight data redistributed |
| ``gated`` | a driver-side coordinator behind that gate |
"""
