"""Marks: what each of our snapshots says in its summary, and the references that keep them."""

from __future__ import annotations

from pydantic import ValidationError
from pyiceberg.table.snapshots import Snapshot

from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.sink.log_table import MARK_PREFIX, TableMark


class Mark(TableMark):
    """What the table has seen of one sink, in the summary of a snapshot as ``dagster_ckpt.<name>``."""

    theirs: int | None = None
    """Newest snapshot since ``base`` by which somebody else changed rows, of those this one shows."""

    def summary(self) -> dict[str, str]:
        """Return it as properties of a snapshot."""
        said = self.model_dump(mode="json", exclude_none=True)
        return {MARK_PREFIX + name: str(value) for name, value in said.items()}


def mark_of(snapshot: Snapshot, owner: tuple[str, str] | None) -> Mark | None:
    """Return the mark of a snapshot of one sink, by its (pipeline, uid); None: it is not its. No owner: anybody's."""
    properties = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    said = {
        name.removeprefix(MARK_PREFIX): v for name, v in properties.items() if name.startswith(MARK_PREFIX)
    }
    if not said or (owner is not None and (said.get("pipeline"), said.get("sink")) != owner):
        return None
    version = said.pop("format_version", "")
    try:
        if version != "1":
            raise ValueError(f"its format is {version!r}")
        return Mark.model_validate_strings(said)
    except (ValidationError, ValueError) as error:
        raise Corrupt(
            f"snapshot {snapshot.snapshot_id} carries a mark of a newer version of dagster_ckpt: {error}. Use that one"
        ) from error


def changes_rows(snapshot: Snapshot) -> bool:
    """False where a snapshot only arranged the same rows in other files."""
    return snapshot.summary is None or snapshot.summary.operation.value != "replace"


def operation_of(snapshot: Snapshot) -> str:
    """Return what a snapshot did."""
    return snapshot.summary.operation.value if snapshot.summary is not None else "unknown"


class Refs:
    """Names of the references that hold a sink's snapshots."""

    def __init__(self, pipeline: str, uid: str) -> None:
        self.newest = f"dagster_ckpt/{pipeline}/{uid}"
        """Tag: our newest snapshot."""
        self.base = f"{self.newest}/base"
        """Tag: the snapshot before our first one."""
        self._cuts = f"{self.newest}/cut_"

    def cut(self, head: int) -> str:
        """Tag: the snapshot that a restore of a retained cut goes back to."""
        return f"{self._cuts}{head}"

    def is_cut(self, name: str) -> bool:
        """Tell the tags of cuts."""
        return name.startswith(self._cuts)

    def set_aside(self, head: int | None, epoch: int) -> str:
        """Branch: rows that left the table when attempt ``epoch`` went back from checkpoint ``head``."""
        return f"{self.newest}/set_aside_{head or 0}_attempt_{epoch}"
