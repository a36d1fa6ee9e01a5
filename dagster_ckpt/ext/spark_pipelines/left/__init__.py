"""Checkpoints and tables that Spark has left of a project: read, compared, and rebuilt as ours.

| file | what it owns |
|---|---|
| ``source_order`` | numbers of a flow's sources, in Spark's plan and in ours |
| ``flow_checkpoints`` | checkpoints, compared and rebuilt; Spark's logs of files |
| ``delta_left`` | Delta tables that were filled |
| ``table_rows`` | which of those can be taken over, their rows staged for ours |
"""
