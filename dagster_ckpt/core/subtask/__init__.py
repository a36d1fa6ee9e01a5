"""The stage's side of a checkpoint (Flink: SubtaskCheckpointCoordinator).

| file | what it owns |
|---|---|
| ``checkpoints`` | order of the steps, aborts, the final checkpoint |
| ``effects`` | what they ask the stage's host to do |
"""
