"""Parquet tables: two-phase, so that rows appear with the checkpoint that holds them.

| file | what it owns |
|---|---|
| ``parquet_sink`` | such a table behind the port of sinks |
| ``sink`` | first phase: rows as they are staged |
| ``schema`` | which rows it can take beside those it has |
| ``publish`` | second phase: visible once the checkpoint is complete |
| ``buckets`` | upsert tables |
| ``version_digests`` | digests of upsert tables' files |
| ``log`` | description, state and publish log |
| ``records`` | what a table persists beside its rows |
| ``roll_back`` | a table brought to the rows of a cut |
| ``read`` | the rows of one state of a table |
| ``fork`` | a fork's table, which begins with the rows of a cut |
| ``retention`` | what a table keeps for restorable checkpoints |
"""
