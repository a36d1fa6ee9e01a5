"""Sooner starts of Spark. Without this folder each run waits for a new JVM, and nothing else changes.

| file | what it owns |
|---|---|
| ``session`` | a Spark session on the warm engine, found or started and borrowed, or on a JVM of its own |
| ``keeper`` | the process that keeps the JVM: one borrower at a time, an end when idle; its messages |
| ``command`` | the command ``class-archive`` |
| ``class_archive`` | Java's archive of Spark's classes: made, found, given to a session |
| ``typical_work`` | the program whose classes are archived |
"""
