"""Delta tables, written by delta-rs: a checkpoint's rows are one commit of the table, and a roll-back is a restore.

The rows lie where Spark staged them, below ``_dagster_ckpt/staged`` in the table's folder (VACUUM passes over names
that begin with an underscore), and a commit names them. Each of our commits carries a ``Mark``: what the table has
seen of the pipeline. Nothing else is kept: reading the newest mark and committing on exactly that version is a
compare-and-set, so a racing or older attempt is refused by the table itself (docs/decisions/0017-delta.md).

| file | what it owns |
|---|---|
| ``sink`` | ``DeltaSink``, the port |
| ``backend`` | the table behind the engine (``ext/tables``): read, committed to |
| ``version`` | the table as it was read: its log as states |
| ``lake`` | the calls of delta-rs, and its errors in the library's words |
| ``columns`` | rows against the table's columns; bounds of a file's, by which readers pass over it |
| ``remote`` | where staged files are: the table's folder, or its object store |
| ``upsert`` | rows by key: the files they touch, written again |
| ``upkeep`` | small files merged, old ones and staged ones that nothing needs removed; the versions that cuts pin |
"""
