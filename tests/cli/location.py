"""A code location without Spark: jobs named as those of a pipeline ``sales``, that say what they were given.

Annotations are evaluated: Dagster reads the context's type from them.
"""

import json
import os
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_ckpt import spark_sink, spark_source
from tests.lab.pipelines import wired


@spark_source
def totals(spark: Any) -> Any:
    """Declared only: no test runs it."""
    raise NotImplementedError


@spark_sink(previous_uids=("table",))
def written(totals: Any) -> Any:
    """Declared only: no test runs it."""
    raise NotImplementedError


sales = wired("sales", totals, written)


forked = sales.fork("sales_fork", table_dir="tables")


def _op(job: str) -> dg.OpDefinition:
    @dg.op(name=f"{job}__op", config_schema=dg.Permissive())
    def note(context: dg.OpExecutionContext) -> None:
        given = {"job": context.job_name, "config": dict(context.op_config), "tags": dict(context.run_tags)}
        Path(os.environ["NOTES"]).write_text(json.dumps(given))
        if context.op_config.get("note") == "fail":
            raise dg.Failure(description="the disk of the savepoint folder is full", allow_retries=False)

    return note


def _job(name: str, op: str) -> dg.JobDefinition:
    made = _op(name)
    named = {dg.NodeInvocation(made.name, alias=op): {}}
    graph = dg.GraphDefinition(name=f"{name}__graph", node_defs=[made], dependencies=named)
    return graph.to_job(name=name, executor_def=dg.in_process_executor)


defs = dg.Definitions(
    jobs=[
        _job("sales", "restore"),
        _job("sales_streaming", "stream"),
        _job("sales_fork", "restore"),
        _job("sales_savepoint", "savepoint"),
    ]
)
