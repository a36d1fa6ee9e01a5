"""Base of the contract: the parts that a subclass gives, and how its tests begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from dagster_ckpt.core.ids import CoordinatorEpoch, StageUid
from dagster_ckpt.spark.sink.port import AttemptId, Sink, SinkContext
from dagster_ckpt.testing.sinks.run import Row, SinkRun, Staging, Step, context_in

FIRST = AttemptId("first", CoordinatorEpoch(1))


class ContractBase:
    """Abilities of a sink, and the ways by which the tests reach it."""

    can_roll_back: ClassVar[bool] = True
    """Rows that were published after a cut can leave again."""
    can_fork: ClassVar[bool] = True
    says_whose: ClassVar[bool] = False
    """What it shows says whose rows they are: another sink that publishes there is refused."""
    can_upsert: ClassVar[bool] = True
    can_replace: ClassVar[bool] = True
    """Output mode *complete* without a key."""
    is_atomic: ClassVar[bool] = True
    """No reader ever sees a part of a publish; False: not before the next attempt has taken over."""
    can_be_raced: ClassVar[bool] = True
    """False: a publish holds a lock, so that a newer attempt waits for it."""
    can_add_columns: ClassVar[bool] = True
    checks_types: ClassVar[bool] = True
    """A column that changes its type is refused when it is published, not only by ``check``."""
    changes_together: ClassVar[bool] = False
    """``joint`` is not None: two sinks of one pipeline are published in one step."""
    goes_back_together: ClassVar[bool] = False
    """They are rolled back in one step too."""
    stages_files: ClassVar[bool] = True
    """Staged rows are files that ``collect_garbage`` removes once nothing needs them."""

    can_load: ClassVar[bool] = False
    """``rows`` returns what readers find."""
    can_load_cuts: ClassVar[bool] = False
    """``rows`` returns the rows of a cut as well …"""
    can_load_shown: ClassVar[bool] = False
    """… or at least of one whose rows were all published."""

    # --- what a subclass gives ----------------------------------------------------------------------------------------

    def open(self, context: SinkContext) -> Sink:
        """Return the sink, opened."""
        raise NotImplementedError

    def rows(self, place: str) -> list[Row]:
        """Return every (k, v) that any reader finds there; none where nothing was made yet."""
        raise NotImplementedError

    def steps(self) -> Sequence[Step]:
        """Return the functions that act on the outside, as (owner, name): the process ends before and after each."""
        raise NotImplementedError

    def staging(self, sink: Sink, context: SinkContext) -> Staging:
        """Return where the sink's ``prepare`` stages."""
        folder = context.work_dir / "staged" / str(context.attempt().epoch)
        return Staging(context.work_dir, folder)

    def context(self, folder: Path, *, pipeline: str = "shop", key: tuple[str, ...] = ()) -> SinkContext:
        """Return the context of the first attempt; ``folder`` is the test's own."""
        return context_in(folder, FIRST, pipeline=pipeline, key=key)

    # --- how the tests begin ----------------------------------------------------------------------------------------

    def opened(
        self, folder: Path, *, pipeline: str = "shop", key: tuple[str, ...] = (), name: str = ""
    ) -> SinkRun:
        """Return a first attempt that has not taken over yet; ``name``: of another sink of the pipeline."""
        context = self.context(folder, pipeline=pipeline, key=key)
        if name:
            context = replace(
                context, uid=StageUid(name), name=name, work_dir=context.work_dir.with_name(name)
            )
        return SinkRun(
            open=self.open,
            staging=self.staging,
            context=context,
            attempt=context.attempt(),
            sink=self.open(context),
        )

    def begun(
        self, folder: Path, *, pipeline: str = "shop", key: tuple[str, ...] = (), name: str = ""
    ) -> SinkRun:
        """Return a first attempt at work."""
        run = self.opened(folder, pipeline=pipeline, key=key, name=name)
        run.sink.take_over()
        return run

    def published(self, folder: Path, *batches: Sequence[Row], key: tuple[str, ...] = ()) -> SinkRun:
        """Return a first attempt at work, each of whose checkpoints (1, 2, …) has shown one of these batches."""
        run = self.begun(folder, key=key)
        for number, rows in enumerate(batches, start=1):
            run.batch(rows)
            run.publish(number)
        return run

    def shown(self, run: SinkRun) -> list[Row]:
        """Return the rows that readers find."""
        return sorted(self.rows(run.sink.place))

    def skip_unless(self, can: bool, what: str) -> None:
        """Skip what this sink says it cannot do."""
        if not can:
            pytest.skip(f"{type(self).__name__} {what}")
