"""A run whose stages run in a program that Dagster launched through Pipes, wherever that is.

| file | what it owns |
|---|---|
| ``messages`` | what the program is told, and what it tells, one way and the other |
| ``run`` | one launch, from its order to its verdict |
"""
