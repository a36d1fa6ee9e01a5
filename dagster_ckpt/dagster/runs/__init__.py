"""One run of a pipeline inside a Dagster run.

| file | what it owns |
|---|---|
| ``attempt`` | one attempt of a pipeline, shared by the run's ops |
| ``turn`` | when a run claims its pipeline: whether the run that owns it is alive, and requests to that one |
"""
