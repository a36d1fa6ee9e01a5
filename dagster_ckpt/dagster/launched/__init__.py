"""A run whose stages run in a program that Dagster launched through Pipes, wherever that is.

| file | what it owns |
|---|---|
| ``order`` | what the program is told |
| ``messages`` | what the program tells, one way and the other |
| ``run`` | one launch, from its order to its verdict |
"""
