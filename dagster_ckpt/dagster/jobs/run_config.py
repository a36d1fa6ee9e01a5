"""Config of runs: what they start from, and settings for this run only.

Annotations are evaluated: Dagster reads config classes from them.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import dagster as dg

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.settings import our_name
from dagster_ckpt.dagster.launchpad import seldom
from dagster_ckpt.dagster.names import RESTORE_OP, STREAM_OP, RestoreMode
from dagster_ckpt.errors import InvalidRequest

E = TypeVar("E", bound=StrEnum)


class RestoreConfig(dg.Config):
    """Config of a run: what it starts from."""

    restore_from: str = "latest"
    """``latest``, ``none``, a key such as ``chk-31`` or ``savepoint-7``, or the path or URI of one."""
    claim_mode: str = seldom("no_claim")
    """``no_claim``, ``claim`` or ``legacy``: who owns the snapshot afterwards."""
    allow_non_restored_state: bool = seldom(False)
    """Go on although the snapshot holds state of a stage the pipeline no longer has."""
    roll_back_tables: bool = seldom(True)
    """Set aside rows that tables received after the restore point."""
    keep_rows_of: list[str] = seldom([])
    """Sinks, by uid, whose rows after the restore point stay all the same: those that cannot go back."""
    fork: bool = seldom(False)
    """The snapshot is another pipeline's: begin with new query ids and tables of our own."""
    adopt_history: bool = seldom(False)
    """Go on although the coordinator store is behind what storage, working directory or sinks have seen, or these are
    another history's."""
    allow_missing_files: bool = seldom(False)
    """Go on although files are gone that a file source has read after the restore point: their rows are left out."""
    without_channel_state_of: int | None = None
    """Leave out the in-flight data of exactly this checkpoint."""

    def options(self) -> RestoreOptions:
        """Return the checked options. Raises InvalidRequest."""
        return self._options({})

    def _options(self, further: Mapping[str, Any]) -> RestoreOptions:
        given = {name: getattr(self, name) for name in RestoreOptions.model_fields if is_given(self, name)}
        try:
            return RestoreOptions.of(**{**given, **further})
        except InvalidRequest as error:
            raise InvalidRequest(f"Run config of op {RESTORE_OP!r}: {error}") from error


class RunConfig(RestoreConfig):
    """Config of a run: what it starts from, and settings for this run only."""

    mode: str = seldom("restore")
    """``restore``; ``preview``: only say what that would do; ``gate``: the same, with an approval that a second launch
    carries; ``dry_run``: try the restore in a scratch directory, for the check ``checkpoint_restorable``."""
    approved: str = seldom("")
    """Approval that a preview with ``mode: gate`` gave: refused when something has happened since."""
    try_queries: bool = seldom(True)
    """A preview also starts every stage's query on a copy, with Spark, into a null sink: that finds a query which
    cannot go on from the snapshot's state. False: it answers at once, from files alone."""
    concurrent_runs: str = seldom("")
    """``queue``, ``skip`` or ``take_over``, where another run of the pipeline is alive; empty: as the pipeline says."""
    checkpointing: dict[str, Any] = seldom({})
    """Settings that override the pipeline's and the resource's, under our names or Flink's."""

    def options(self) -> RestoreOptions:
        """Return the checked options, those given under Flink's keys as well. Raises InvalidRequest."""
        return self._options({k: v for k, v in self.checkpointing.items() if _is_restore_option(k)})

    def settings(self) -> dict[str, Any]:
        """Return how this run's checkpoints are taken, unchecked."""
        return without_restore_options(self.checkpointing)


def looks_only(run_config: Mapping[str, Any]) -> bool:
    """Tell whether a run with this config of op ``restore`` or ``stream`` restores nothing, and only says something."""
    ops: Any = run_config.get("ops") or {}
    for op in (RESTORE_OP, STREAM_OP):
        config: Any = (ops.get(op) or {}).get("config") or {}
        mode = str(config.get("mode", "")).strip().lower()
        if mode in (RestoreMode.PREVIEW, RestoreMode.DRY_RUN) or (
            mode == RestoreMode.GATE and not config.get("approved")
        ):
            return True
    return False


def word_in(words: type[E], given: str, *, setting: str, op: str, among: Collection[E] = ()) -> E:
    """Return the word that a run config's setting names, ``among`` those allowed. Raises InvalidRequest."""
    allowed = tuple(among or words)
    for word in allowed:
        if given.strip().lower() == word:
            return word
    raise InvalidRequest(
        f"Run config of op {op!r}: {setting} must be one of {', '.join(allowed)}, got {given!r}"
    )


def is_given(config: dg.Config, name: str) -> bool:
    """Tell whether a setting is another than its default."""
    field = type(config).model_fields[name]
    return bool(getattr(config, name) != field.get_default(call_default_factory=True))


def refuse_of_others(config: dg.Config, chosen: E, own: Mapping[E, Collection[str]], *, op: str) -> None:
    """Raise InvalidRequest for a setting that says nothing to the action ``chosen``; ``own``: the settings of each."""
    for name in type(config).model_fields:
        users = [action for action, names in own.items() if name in names]
        if users and chosen not in users and is_given(config, name):
            raise InvalidRequest(
                f"Run config of op {op!r}: {name} is for action {' and '.join(users)}, and says nothing to {chosen}: "
                "leave it out"
            )


def without_restore_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that say how checkpoints are taken, not what the run starts from."""
    return {k: v for k, v in settings.items() if not _is_restore_option(k)}


def _is_restore_option(key: str) -> bool:
    return our_name(key) in RestoreOptions.model_fields
