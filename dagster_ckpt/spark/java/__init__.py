"""Calls into Spark's Java that PySpark does not publish: all of the library's, and nowhere else.

Without this room a new version of Spark would break the library in twenty places. Each call is a function that says
what it asks, and since which version of Spark it can be asked; where it says nothing: since before 4.2, the oldest one
that the library runs on. ``tests/test_architecture.py`` finds a call elsewhere.

| file | what it owns |
|---|---|
| ``plans`` | plans of DataFrames and of statements, as Spark's own objects |
| ``sessions`` | a session's context, catalog, settings, queries, file systems and executors; a task on each of them |
| ``process`` | the Java process that PySpark has started: whether it runs, how to let go of it, its secrets |
"""
