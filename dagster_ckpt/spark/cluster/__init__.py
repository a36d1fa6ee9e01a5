"""Executors that are not the driver: what they see and have, how many rows they wrote, this package sent to them.

| file | what it owns |
|---|---|
| ``probe`` | whether what was found lets a pipeline run, in one sentence |
| ``sent`` | the package as a zip, and what a task finds out where it runs, by value |
| ``counted`` | rows of a write as its tasks count them, compared with those found |
| ``lost`` | applications that a cluster has ended, or left without executors: another session takes their place |
"""
