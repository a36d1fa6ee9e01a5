"""``dagster-ckpt``: checkpoints and savepoints from the command line.

| file | what it owns |
|---|---|
| ``app`` | the program, and what its exit codes mean |
| ``frame`` | what every command has: locations, ``--json``, errors turned into exit codes |
| ``locations`` | where a deployment is, from options and environment |
| ``output`` | tables, JSON, progress bars |
| ``shapes`` | results as JSON values |
| ``look`` | list, show, verify, diff, preview |
| ``look_tables`` | how those look to people |
| ``state`` | inspect |
| ``spark_session`` | the session it reads state with |
| ``keep`` | export, import, adopt, dispose |
| ``tidy`` | clean, doctor |
| ``run`` | savepoint, restore, fork |
| ``dagster_partitions`` | the checkpoints asset's partitions, where there is a Dagster instance |
| ``launch`` | a Dagster job, through a webserver or in this process |
| ``code`` | a code location's definitions and pipelines, loaded here |
"""

from dagster_ckpt.cli.app import main

__all__ = ["main"]
