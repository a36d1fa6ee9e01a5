"""The tables of sinks: two-phase, so that rows appear with the checkpoint that holds them.

| file | what it owns |
|---|---|
| ``tables`` | all tables of a pipeline |
| ``sink`` | first phase: staged as batches run |
| ``publish`` | second phase: visible once the checkpoint is complete |
| ``buckets`` | upsert tables |
| ``log`` | description, state and publish log |
| ``records`` | what a table persists beside its rows |
| ``roll_back`` | a table brought to the rows of a cut |
| ``fork`` | a fork's table, which begins with the rows of a cut |
| ``retention`` | what a table keeps for restorable checkpoints |
"""
