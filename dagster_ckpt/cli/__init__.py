"""``dagster-ckpt``: checkpoints and savepoints from the command line.

| file | what it owns |
|---|---|
| ``app`` | the program, and what its exit codes mean |
| ``commands/`` | one file per command, by its name |
| ``context`` | what all commands have: locations, ``--json``, errors turned into exit codes; completion in a shell |
| ``output`` | tables, JSON values of results, progress bars |
| ``spark_session`` | the session that state is read with |
| ``launch`` | a Dagster job, through a webserver or in this process; partitions of the checkpoints asset |
| ``code_location`` | a code location's definitions and pipelines, loaded here |
"""

from dagster_ckpt.cli.app import main

__all__ = ["main"]
