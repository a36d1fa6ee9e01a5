"""One run of a pipeline inside a Dagster run.

| file | what it owns |
|---|---|
| ``attempt`` | one attempt of a pipeline, shared by the run's ops |
| ``turn`` | when a run claims its pipeline: waiting for the one that is alive |
| ``lease`` | whether the run that owns a pipeline is alive, and requests to it |
"""
