"""What do a hundred pipelines of one code location cost? ``python -m benchmarks.many_pipelines [--pipelines 100]``

Jobs and sensors; seconds of processor time to build the definitions and to load them as a code server does, beside bare
Dagster with as many jobs of as many ops and an asset each; seconds that importing us takes beside what importing
Dagster takes, each in a process of its own. The bars: five jobs a pipeline, ten sensors, 4 s, half of Dagster's import.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.remote_representation.external_data import RepositorySnap

from benchmarks.common import show
from dagster_ckpt import (
    build_location_definitions,
    checkpointed_pipeline,
    spark_sink,
    spark_source,
    spark_stage,
)

STAGES = ("orders", "totals", "table")
IMPORTS = {
    "dagster": "import dagster",
    "ours": (
        "from dagster_ckpt import CheckpointCoordinatorResource, PipelineOptions, "
        "SparkSessionResource, build_location_definitions, checkpointed_pipeline, spark_sink, spark_source, spark_stage"
    ),
}


def declared(*_: Any) -> Any:
    """Stage that no benchmark runs."""
    raise NotImplementedError


def ours(count: int) -> dg.Definitions:
    """So many pipelines of three stages."""
    made = []
    for number in range(count):

        def source(spark: Any) -> Any:
            return declared(spark)

        def stage(rows: Any) -> Any:
            return declared(rows)

        orders, totals, table = (
            spark_source(uid="orders")(source),
            spark_stage(uid="totals")(stage),
            spark_sink(uid="table")(stage),
        )

        def pipeline() -> None:
            table(totals(orders()))  # noqa: B023 - called in this turn of the loop

        made.append(checkpointed_pipeline(name=f"p{number}")(pipeline))
    return build_location_definitions(made)


def bare(jobs: Mapping[str, Sequence[str]]) -> dg.Definitions:
    """Jobs of the same names with ops in a row, and an asset each, by Dagster alone."""
    made = []
    for name, ops in jobs.items():

        def run() -> None:
            raise NotImplementedError

        nodes = [
            dg.op(
                name=f"{name}__{op}",
                ins={"before": dg.In(dg.Nothing)} if number else {},
                out={"done": dg.Out(dg.Nothing)},
            )(run)
            for number, op in enumerate(ops)
        ]
        links: dict[Any, Any] = {
            dg.NodeInvocation(node.name): {}
            if number == 0
            else {"before": dg.DependencyDefinition(nodes[number - 1].name, "done")}
            for number, node in enumerate(nodes)
        }
        graph = dg.GraphDefinition(name=f"{name}__graph", node_defs=nodes, dependencies=links)
        made.append(graph.to_job(name=name))
    return dg.Definitions(jobs=made, assets=[dg.AssetSpec(f"{name}_asset") for name in jobs])


def loaded(build: Callable[[], dg.Definitions]) -> tuple[float, dg.Definitions]:
    """Seconds to build definitions and to load them as a code server does."""
    began = time.process_time()
    made = build()
    repository = made.get_repository_def()
    repository.load_all_definitions()
    RepositorySnap.from_def(repository)
    return time.process_time() - began, made


def imported(rounds: int) -> dict[str, float]:
    """Median seconds of an import, ours beyond Dagster's, in alternating order, both compiled as pip installs them."""
    taken: dict[str, list[float]] = {name: [] for name in IMPORTS}
    compiled = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    for _ in range(rounds + 1):
        for name, statement in IMPORTS.items():
            program = (
                "import time; t = time.process_time(); import dagster; d = time.process_time(); "
                f"{statement}; print((d - t) if {name == 'dagster'} else time.process_time() - d)"
            )
            command = [sys.executable, "-c", program]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=compiled)
            taken[name].append(float(done.stdout))
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    ours(1).get_repository_def()  # what is imported at first use
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(args.rounds):
        seconds, made = loaded(lambda: ours(args.pipelines))
        times["ours"].append(seconds)
        jobs = [job for job in made.resolve_all_job_defs() if not job.name.startswith("__")]
        like = {job.name: [node.name for node in job.nodes] for job in jobs}
        times["bare"].append(loaded(lambda: bare(like))[0])  # noqa: B023 - it is called here
    mine, theirs = (min(times[name]) for name in ("ours", "bare"))
    took = imported(args.rounds)
    shown: dict[str, Any] = {
        "pipelines": args.pipelines,
        "jobs": len(jobs),
        "sensors": len(list(made.sensors or ())),
        "build and load, CPU s": round(mine, 2),
        "bare Dagster with as many jobs, CPU s": round(theirs, 2),
        "times bare": round(mine / theirs, 2),
        "import, s": round(took["ours"], 2),
        "Dagster's import, s": round(took["dagster"], 2),
        "of Dagster's import": round(took["ours"] / took["dagster"], 2),
    }
    show("many pipelines in one code location", [shown])


if __name__ == "__main__":
    main()
