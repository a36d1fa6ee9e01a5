"""Executors that are not the driver: what they see and have, how many rows they wrote, this package sent to them.

| file | what it owns |
|---|---|
| ``visit`` | what a task finds out where it runs; sent by value |
| ``probe`` | whether what was found lets a pipeline run, in one sentence |
| ``package`` | this package as a zip, sent to executors |
| ``counted`` | rows of a write as its tasks count them, compared with those found |
| ``lost`` | applications that a cluster has ended, or left without executors: another session takes their place |
"""
