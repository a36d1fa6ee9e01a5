"""Asset checks of a checkpoints asset: run by a person or a schedule, reported by runs and sensors as well.

| file | what it owns |
|---|---|
| ``history`` | the last checkpoint completed, its rows are as conditions say, the newest is young; facts of alarms |
| ``standing`` | snapshots that were found broken stay red beside others that are well |
| ``verified`` | every file of it is there with the bytes that were written |
| ``restorable`` | Spark starts every stage from it, in a scratch directory and into a null sink |
| ``horizon`` | what snapshots go back to is there, and stays for days |
| ``dry_run`` | how that is tried |
| ``chosen_snapshot`` | which checkpoint a check looks at |
"""
