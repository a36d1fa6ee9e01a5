"""Our resources in Dagster: without them no run knows its store, its folders or its Spark session.

| file | what it owns |
|---|---|
| ``coordinator`` | the coordinator: where checkpoints live and how they are taken |
| ``spark`` | the Spark session |
| ``pipeline`` | resources of one pipeline beside those of others; their folders: gone with a container? |
"""
