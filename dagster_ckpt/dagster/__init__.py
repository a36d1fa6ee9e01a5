"""The Dagster layer: everything that imports Dagster, but the command line.

``dagster`` is the framework wherever it is imported; never run Python with this folder's parent on ``sys.path``.

| file | what it owns |
|---|---|
| ``names`` | names of jobs, ops, tags and resources; imports no Dagster |
| ``resources`` | the coordinator as a Dagster resource |
| ``spark_resource`` | the Spark session as a Dagster resource |
| ``opened`` | both resources outside of a Dagster run |
| ``launchpad`` | what a job's Launchpad shows of its settings |
| ``folders`` | folders of a run, by their setting: not writable, or gone with a container |
| ``start`` | facts of a start: the code, and the machine before Java starts |
| ``pipeline_resources`` | resources of one pipeline beside those of others |
| ``options`` | settings of one pipeline: how it shows in Dagster, what watches it |
| ``pipeline_jobs`` | the jobs of one pipeline, by what they do to it |
| ``definitions`` | the calls that turn pipelines into Dagster definitions |
| ``asset`` | the checkpoints asset, and a checkpoint as its events |
| ``metadata`` | what people see of a checkpoint: tables, human units, numbers that plot |
| ``lines`` | lines of a run's log |
| ``op_log`` | the op that events are written to, here or elsewhere |
| ``events`` | listens to the coordinator and reports to Dagster |
| ``stream_events`` | what of a stream becomes an event in Dagster, and when |
| ``alarm_facts`` | what alarms and the age checks are decided on |
| ``operator`` | who had a run done |
| ``attempt`` | one attempt of a pipeline inside a Dagster run |
| ``launch`` | where stages run that do not run in Dagster's process |
| ``launched/`` | a run in a program launched through Pipes: order, messages, verdict |
| ``lease`` | whether the run that owns a pipeline is alive, and requests to it |
| ``turn`` | when a run claims its pipeline: waiting for the one that is alive |
| ``scheduled_checks`` | verification and dry runs on a schedule |
| ``schedules`` | scheduled epochs and savepoints |
| ``jobs/`` | one file per job |
| ``table_assets`` | published tables as assets, and their changes as events |
| ``published_tables`` | published tables as inputs of assets: an IO manager |
| ``table_runs`` | published tables that are materialized from Dagster |
| ``checks/`` | asset checks: succeeded, age, verified, restorable |
| ``sensors/`` | safety net, run-status mirror, failure alarm, restart, savepoints on a condition |
| ``components/`` | a pipeline in YAML |
"""
