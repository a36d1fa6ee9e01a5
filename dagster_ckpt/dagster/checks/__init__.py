"""Asset checks of a checkpoints asset: run by a person or a schedule, reported by runs and sensors as well.

| file | what it owns |
|---|---|
| ``history`` | the last checkpoint completed, its rows are as conditions say, the newest is young; horizons |
| ``snapshot_checks`` | every file of it is there as written; Spark starts every stage from it, into a null sink |
| ``dry_run`` | how that is tried |
| ``chosen_snapshot`` | which checkpoint a check looks at; what was found broken stays red beside what is well |
"""
