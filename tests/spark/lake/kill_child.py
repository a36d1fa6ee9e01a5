"""A run on a machine of its own, which ends with it: ``python -m tests.spark.lake.kill_child PLACES HOW AT NUMBER``.

``HOW`` is ``epoch`` or ``stream``. At the ``NUMBER``-th call of step ``AT`` the process group is killed; 0: never. Run
it with HOME, TMPDIR and the working directory on the machine's disk.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dagster_ckpt import SparkSessionResource, run_epoch, run_stream
from tests.lab import child
from tests.spark.lake.deployment import Places

STEPS = {
    "publish": "dagster_ckpt.spark.attempt.sinks:publish_prepared",
    "acknowledge": "dagster_ckpt.runtime.coordinator:CheckpointCoordinator.acknowledge_stage",
}
"""What is about to be done when the machine ends."""
SPARK = SparkSessionResource(master="local[2,3]", conf=child.SPARK)


def end_machine_at(step: str, number: int) -> None:
    module, _, path = STEPS[step].partition(":")
    __import__(module)
    *above, name = path.split(".")
    owner: Any = sys.modules[module]
    for part in above:
        owner = getattr(owner, part)
    setattr(owner, name, _counted(getattr(owner, name), number))


def _counted(act: Callable[..., Any], number: int) -> Callable[..., Any]:
    calls = 0

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.killpg(0, signal.SIGKILL)  # the driver's JVM is of the same group
        return act(*arguments, **named)

    return call


def main() -> int:
    places, how, step, number = Places.read(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    coordinator = places.coordinator(Path.cwd())
    end_machine_at(step, number)
    if how == "epoch":
        run_epoch(places.pipeline(), coordinator=coordinator, spark=SPARK)
    else:
        run_stream(places.pipeline(), coordinator=coordinator, spark=SPARK, settings={"interval": 0.5})
    return 0


if __name__ == "__main__":
    sys.exit(main())
