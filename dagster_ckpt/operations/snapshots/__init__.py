"""Snapshots as people handle them. Without this folder a snapshot could be restored, and neither found nor trusted.

| file | what it owns |
|---|---|
| ``catalog`` | listing snapshots, and finding the one a person names |
| ``contents`` | the files of a snapshot: single ones read; is every one there and intact |
| ``facts`` | what is known about every stored file of a pipeline |
| ``inspect`` | a stage's state at a snapshot, as DataFrames; its keys that were added, changed, removed between two |
| ``diff`` | what two snapshots differ in; how far two offsets are apart |
| ``export`` | a snapshot copied to another storage, self-contained; or its facts for a plan alone |
| ``registration`` | how a savepoint from elsewhere enters the coordinator's record; import |
| ``adopt`` | a Spark checkpoint directory becomes a savepoint |
"""
