"""Config of runs: what they start from, and settings for this run only.

Annotations are evaluated: Dagster reads config classes from them.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic.fields import FieldInfo

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.settings import our_name
from dagster_ckpt.dagster.launchpad import seldom
from dagster_ckpt.dagster.names import RESTORE_OP
from dagster_ckpt.errors import InvalidRequest


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

    def _is_default(self, name: str, field: FieldInfo) -> bool:
        return bool(getattr(self, name) == field.get_default(call_default_factory=True))

    def _options(self, further: Mapping[str, Any]) -> RestoreOptions:
        fields = {name: RestoreConfig.model_fields[name] for name in RestoreOptions.model_fields}
        given = {
            name: getattr(self, name) for name, field in fields.items() if not self._is_default(name, field)
        }
        try:
            return RestoreOptions.of(**{**given, **further})
        except InvalidRequest as error:
            raise InvalidRequest(f"Run config of op {RESTORE_OP!r}: {error}") from error


class RunConfig(RestoreConfig):
    """Config of a run: what it starts from, and settings for this run only."""

    approved: str = seldom("")
    """Approval that a gated restore's preview gave: refused when something has happened since."""
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


def without_restore_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that say how checkpoints are taken, not what the run starts from."""
    return {k: v for k, v in settings.items() if not _is_restore_option(k)}


def _is_restore_option(key: str) -> bool:
    return our_name(key) in RestoreOptions.model_fields
