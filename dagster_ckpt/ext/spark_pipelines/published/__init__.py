"""Participants in publishes: what a project makes of its published tables.

| file | what it owns |
|---|---|
| ``derived`` | derived tables: computed from published rows, replaced whole |
| ``catalog_views`` | views in Spark's catalog on published tables |
"""
