"""The Dagster layer: everything that imports Dagster, but the command line.

``dagster`` is the framework wherever it is imported; never run Python with this folder's parent on ``sys.path``.

| file | what it owns |
|---|---|
| ``names`` | names of jobs, ops, tags and resources, and who launched a run; imports no Dagster |
| ``launchpad`` | what a job's Launchpad shows of its settings, and links to it |
| ``resources/`` | the coordinator and the Spark session as Dagster resources, of one pipeline beside others |
| ``console`` | failures as people read them: a sentence in events, and alone on the console |
| ``supervision`` | when people are told of failures: once per episode; whether a failed run is started again |
| ``reporting`` | which of a stream's checkpoints become events of their own; the partitions of that asset |
| ``options`` | settings of one pipeline: how it shows in Dagster, what watches it, where its stages run |
| ``reports/`` | events, metadata and log lines of checkpoints, streams and tables |
| ``runs/`` | one attempt of a pipeline inside a Dagster run: its turn, the lease of others |
| ``launched/`` | a run in a program launched through Pipes: order, messages, verdict |
| ``start`` | facts of a start: the code, and the machine before Java starts |
| ``jobs/`` | one file per job |
| ``pipeline_jobs`` | the jobs of one pipeline, by what they do to it, and their schedules |
| ``tables`` | published tables as inputs of assets, and materialized from Dagster |
| ``checks/`` | asset checks: succeeded, age, verified, restorable |
| ``sensors/`` | safety net, run-status mirror, failure alarm, restart, savepoints on a condition |
| ``definitions`` | the calls that turn pipelines into Dagster definitions; a code location's one set of sensors |
| ``components/`` | a pipeline in YAML |
"""
