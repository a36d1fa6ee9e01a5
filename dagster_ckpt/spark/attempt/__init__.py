"""Beginning of an attempt, in both kinds of run.

| file | what it owns |
|---|---|
| ``attempt`` | an attempt: its coordinator, its tables, its working directory |
| ``pipeline_setup`` | what an attempt is opened with |
| ``places`` | folders that executors write to too, and the session whose executors see them |
| ``gateway`` | how the coordinator reaches stages, as far as both kinds of run do the same |
| ``restore`` | the working directory an attempt starts from |
| ``mark`` | whose a working directory is, and whether its last attempt ended cleanly |
| ``left`` | digest of what an attempt left, so that a lost or older file of it is told |
| ``sinks`` | the sinks of a pipeline: opened, written, cut, published |
| ``sinks_at_start`` | the sinks when an attempt starts: gone on with, begun without rows, brought to a cut |
| ``shown_before`` | rows that a sink has shown, as the store tells it |
| ``derived`` | derived tables: computed from published rows, replaced whole |
| ``catalog_views`` | views in Spark's catalog on published tables |
| ``layout`` | the chains an attempt is opened with |
| ``state_place`` | where a query's state is, and its checkpointLocation |
| ``stage_query`` | a stage as a running query |
| ``hooks`` | the pipeline's hooks, made for one attempt |
| ``table_clean_up`` | removal of table files nothing restorable needs |
| ``source_batch`` | what a source is told when it decides where barriers fall |
"""
