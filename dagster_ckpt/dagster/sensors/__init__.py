"""Sensors of a pipeline: what a run would say if it still lived, and who is told when checkpoints fail.

| file | what it owns |
|---|---|
| ``shared`` | one sensor for all pipelines of a code location; store, runs, links and cursors of all |
| ``safety_net`` | ends attempts of dead runs, expires what nobody expired, keeps the asset in step with the record |
| ``alarms`` | tells people once when checkpoints fail or grow old, or a snapshot stops being restorable, and after |
| ``runs`` | runs that files or a condition of yours start, and that follow a failure |
"""
