"""Reports to Dagster: without them checkpoints are taken, and nobody sees them.

| file | what it owns |
|---|---|
| ``asset`` | the checkpoints asset, and a checkpoint as its events: tables, human units, numbers that plot |
| ``tables`` | published tables as assets, and their changes as events |
| ``op_log`` | lines of a run's log, and the op that events are written to, here or elsewhere |
| ``events`` | listens to the coordinator and reports to Dagster |
| ``stream_events`` | what of a stream becomes an event in Dagster, and when |
"""
