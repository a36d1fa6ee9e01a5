"""Rows that executors and the driver hand to one another where they share no disk: through an object store.

| file | what it owns |
|---|---|
| ``objects`` | a folder of an object store, as tasks reach it |
| ``options`` | storage options of fsspec, as pyarrow spells them |
| ``mounts`` | working directories whose rows lie in such a folder, what is where, whether it is reached |
| ``task_files`` | a micro-batch's rows, written by tasks; the state of queries, by Spark's own connector |
"""
