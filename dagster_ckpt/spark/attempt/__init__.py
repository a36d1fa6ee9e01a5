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
| ``changed_query`` | a query that was changed so that it cannot go on: one sentence |
| ``query_errors`` | what else ends a query, in one sentence: the user's line first |
| ``plan_tree`` | plans of queries as trees |
| ``plan_texts`` | expressions of plans as texts |
| ``plan_shape`` | what of a query's plan its state depends on, compared at every start |
| ``query_sources`` | sources of a query in Spark's order, and what they read |
| ``state_columns`` | columns of that state by their places |
| ``state_fields`` | fields of structs in that state by their places |
| ``state_aggregates`` | aggregates of that state by their places |
| ``kept_columns`` | columns that state is made of, followed to their sources |
| ``time_zones`` | the session's time zone, where rows or state depend on it |
| ``state_variables`` | variables of transformWithState that were renamed: refused in the first batch |
| ``changed_rows`` | rows that changed, counted again by the next stage: refused |
| ``lost_watermark`` | a watermark that does not reach the stage it was meant for: refused |
| ``files_read`` | files that file sources have read: moved with their folder, or written again |
| ``no_files`` | patterns and relative paths that find no file: a warning |
| ``clean_source`` | file sources whose files Spark would take away: refused |
| ``chain_plans`` | what the plans of stages say of running them in one query |
| ``layout`` | the chains an attempt is opened with |
| ``state_place`` | where a query's state is, and its checkpointLocation |
| ``stage_query`` | a stage as a running query |
| ``hooks`` | the pipeline's hooks, made for one attempt |
| ``table_clean_up`` | removal of table files nothing restorable needs |
| ``source_batch`` | what a source is told when it decides where barriers fall |
"""
