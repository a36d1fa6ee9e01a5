"""Redistribution of state to another parallelism (Flink: StateAssignmentOperation).

Reached by scenarios only: in a run a stage is one subtask, and Spark redistributes the state of its partitions itself.

| file | what it owns |
|---|---|
| ``key_groups`` | which subtask owns which part of keyed state |
| ``assignment`` | how list state and in-flight data are redistributed |
"""
