"""A pipeline of one source and one table with a hook that writes down what it hears, in whichever process."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_ckpt import (
    CheckpointedPipeline,
    StageContext,
    pipeline_hook,
    spark_source,
)
from tests.lab.pipelines import sink, wired
from tests.spark.streaming.pipelines import read_numbers


@dataclass(frozen=True)
class Diary:
    """What the hooks of all runs wrote down, and what they are told to do."""

    folder: Path

    def write(self, *entry: Any) -> None:
        with (self.folder / "diary").open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def read(self) -> list[list[Any]]:
        found = self.folder / "diary"
        return [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else []

    def clear(self) -> None:
        (self.folder / "diary").unlink(missing_ok=True)

    def say(self, order: str) -> None:
        """``fail``, ``hang`` or ``die`` in the next calls of ``trigger``; ``die in complete(3)``; empty: nothing."""
        (self.folder / "order").write_text(order)

    def order(self) -> str:
        found = self.folder / "order"
        return found.read_text() if found.exists() else ""


def hooked(
    folder: Path, *, with_hook: bool = True, patience: float = 300.0, **checkpointing: Any
) -> CheckpointedPipeline:
    """numbers -> rows; the hook counts the checkpoints it was asked for, and has ``patience`` seconds for an answer."""
    diary = Diary(folder)

    @pipeline_hook(uid="ledger", timeout=patience)
    class Ledger:
        def __init__(self) -> None:
            self.taken = 0

        def trigger(self, checkpoint_id: int, timestamp: float) -> dict[str, int]:
            match diary.order():
                case "fail":
                    raise ConnectionError("the ledger is closed")
                case "hang":
                    while diary.order() == "hang":
                        os.stat(folder)
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
            self.taken += 1
            diary.write("trigger", checkpoint_id)
            return {"taken": self.taken}

        def restore(self, checkpoint_id: int, state: dict[str, int]) -> None:
            self.taken = state["taken"]
            diary.write("restore", checkpoint_id, self.taken)

        def reset(self) -> None:
            diary.write("reset")

        def complete(self, checkpoint_id: int) -> None:
            if diary.order() == f"die in complete({checkpoint_id})":
                os.kill(os.getpid(), signal.SIGKILL)
            diary.write("complete", checkpoint_id)

        def aborted(self, checkpoint_id: int) -> None:
            diary.write("aborted", checkpoint_id)

        def close(self) -> None:
            diary.write("close")

    @spark_source
    def numbers(spark, context: StageContext):  # type: ignore[no-untyped-def]
        if with_hook:
            diary.write("source", context.hooks["ledger"].taken)
        return read_numbers(spark, folder / "numbers")

    return wired(
        "hooked",
        numbers,
        sink("rows", lambda numbers: numbers.selectExpr("n", "'fast' AS path")),
        checkpointing=checkpointing,
        hooks=[Ledger] if with_hook else [],
    )
