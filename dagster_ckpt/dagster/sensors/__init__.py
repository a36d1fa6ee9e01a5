"""Sensors of a pipeline: what a run would say if it still lived, and who is told when checkpoints fail.

| file | what it owns |
|---|---|
| ``shared`` | one sensor for all pipelines of a code location |
| ``location`` | the set of sensors of a code location, joined by its pipelines one after the other |
| ``ticks`` | store, runs, links and cursors, as all of them use them |
| ``safety_net`` | ends attempts of dead runs, expires what nobody expired, keeps the asset in step with the record |
| ``run_status`` | the same, seconds after a run has failed or was canceled |
| ``failure_alarm`` | tells people once when checkpoints fail or grow old, and once when that is over |
| ``horizon`` | tells people days before a snapshot stops being restorable |
| ``restart`` | starts a pipeline again after its run failed |
| ``new_files`` | runs an epoch when files arrive |
| ``savepoint`` | takes a savepoint when a condition of yours holds |
"""
