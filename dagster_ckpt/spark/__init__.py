"""Everything that touches PySpark, or the files Spark keeps. Executors import some of it: nothing heavy on top.

| file | what it owns |
|---|---|
| ``session`` | the Spark session and why each setting is there; values on their way to Java |
| ``versions`` | versions of Spark, and what each can run |
| ``directories`` | the only file that spells a path of the working directory |
| ``files`` | whole-or-nothing file operations, alone and on many files at once |
| ``stage_report`` | what the runner tells its host; rows and rates of a query's batches |
| ``java/`` | calls into Spark's Java that PySpark does not publish; errors that are Java's, not the query's |
| ``quoting`` | a name in backticks |
| ``exchange/`` | rows and state that executors hand to one another through an object store |
| ``cluster/`` | executors that are not the driver: probed, counted, sent this package |
| ``snapshot/`` | a stage's part of a snapshot: captured, uploaded, read, restored |
| ``channel/`` | the log between two stages: written, read, restored |
| ``sink/`` | the port of sinks: prepare, publish, position, roll back |
| ``source/`` | what sources read again: is it there, and until when |
| ``plan/`` | the analyzer of query plans: may a changed query go on from its state |
| ``attempt/`` | what both kinds of run begin with: the working directory, and a stage as a running query |
| ``epoch/`` | epoch runs: drain the available data in graph order, the barrier follows |
| ``streaming/`` | streaming runs: all stages at once, barriers through the logs |
| ``worker_start/`` | lets Spark's Python processes start in a third of the time |
"""
