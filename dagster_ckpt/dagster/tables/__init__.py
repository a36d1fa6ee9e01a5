"""Published tables in Dagster.

| file | what it owns |
|---|---|
| ``published`` | published tables as inputs of assets: an IO manager |
| ``runs`` | published tables that are materialized from Dagster |
"""
