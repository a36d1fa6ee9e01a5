"""Published tables as readers find them. Without this folder nobody could ask which rows belong to which checkpoint.

| file | what it owns |
|---|---|
| ``open_sink`` | sinks opened to be read: a pipeline's own, those that serve its readers |
| ``load_table`` | a sink's published table, loaded; all tables of a pipeline, as of one checkpoint that they all show |
| ``diff_tables`` | two tables by their rows; what readers would find, compared with what they find |
| ``blue_green`` | a fork compared with what readers find, and readers swapped to it |
| ``replay`` | what a replay begins with, and side tables of earlier ones |
| ``waiting`` | rows that sinks do not show yet, and why |
"""
