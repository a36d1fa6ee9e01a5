"""Marks: what each of our commits says of the sink that made it, whatever the format of the table.

A sink and its pipeline may get other names. So a mark says whose the rows are beside what the sink is called: the
*owner*, the name under which the first of them were written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import Record
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import SinkContext, SinkPosition

PREFIX = "dagster_ckpt."
"""Begins the names of a mark's fields in the metadata of a commit."""
_ONLY_WHERE_SET = ("owner", "theirs", "batches", "staged", "rewrites", "rearranges", "left", "reapply")


class Mark(Record):
    """Mark of one sink's position, in the metadata of a commit as ``dagster_ckpt.<name>``."""

    format_version: Literal[1] = 1
    pipeline: str
    sink: str
    owner: str = ""
    """``pipeline/sink`` that its first rows were written as; empty: as now."""
    lineage: str
    epoch: int
    checkpoint: int | None = None
    """Newest checkpoint that was ever published."""
    head: int | None = None
    """Checkpoint whose rows the table shows; 0: a fork's first rows."""
    through_batch: int | None = None
    base: int | None = None
    """State of the table before our first commit, where others' rows were there first; None: the table is ours."""
    origin: str = ""
    """Where a fork's first rows come from."""
    key: str = ""
    """Key that its rows were written by, as JSON; empty: none was, or before this was kept."""
    theirs: int | None = None
    """Newest state since ``base`` by which somebody else changed rows, of those this one shows."""
    batches: str = ""
    """Batches that this commit showed, as ``attempt that staged them:last one``, comma-separated."""
    staged: tuple[str, ...] = ()
    """Staged folders whose files this commit made part of the table."""
    rewrites: bool = False
    """Rows by key: what was staged went into other files, as did those that stay of files which left the table."""
    rearranges: bool = False
    """The same rows in other files."""
    left: tuple[str, ...] = ()
    """Staged folders whose files left the table by that."""
    reapply: dict[str, str] = Field(default_factory=dict)
    """Properties that somebody set after the state which this commit went back to: they are to be set again."""

    @property
    def label(self) -> str:
        """The sink's name as of this commit."""
        return f"{self.pipeline}/{self.sink}"

    @property
    def owned_by(self) -> str:
        """Whose the rows are."""
        return self.owner or self.label

    def position(self) -> SinkPosition:
        """Return the mark as a position of the port."""
        return SinkPosition(
            lineage=self.lineage,
            epoch=self.epoch,
            checkpoint_id=self.checkpoint,
            head=self.head,
            through_batch=self.through_batch,
        )

    @property
    def lasting(self) -> Mark:
        """The mark without the fields of its own commit."""
        own = {"batches": "", "staged": (), "rewrites": False, "rearranges": False, "left": ()}
        return self.model_copy(update=own)

    def has_shown(self, batch: PreparedBatch) -> bool:
        """Tell whether this very commit made a batch visible."""
        through = dict(each.split(":") for each in self.batches.split(",") if each)
        return int(through.get(str(batch.epoch), -1)) >= batch.batch_id

    @property
    def shown(self) -> dict[str, Any]:
        """Fields about the rows that the table shows, as changes of another mark."""
        return {name: getattr(self, name) for name in NOTHING_SHOWN}

    def fields(self) -> dict[str, Any]:
        """Return the mark as metadata of a commit."""
        fields = type(self).model_fields
        left_out = {
            n for n in _ONLY_WHERE_SET if getattr(self, n) == fields[n].get_default(call_default_factory=True)
        }
        said = self.model_dump(mode="json", exclude=left_out)
        return {PREFIX + name: value for name, value in said.items()}


NOTHING_SHOWN: Mapping[str, Any] = {
    "head": None,
    "through_batch": None,
    "origin": "",
    "key": "",
    "theirs": None,
}
"""What a mark says where the table shows none of the sink's rows."""


@dataclass(frozen=True, slots=True)
class SinkNames:
    """Names of one sink, by which it knows its marks again."""

    pipeline: str
    uid: str
    previous: tuple[str, ...] = ()
    """Names it had before."""
    previous_pipelines: tuple[str, ...] = ()
    """Names its pipeline had before."""
    shared_with: tuple[str, ...] = ()
    """Other pipelines that may write to its table."""

    @classmethod
    def of(cls, context: SinkContext, shared_with: Iterable[str] = ()) -> SinkNames:
        """Return the names in a context."""
        return cls(
            pipeline=context.pipeline,
            uid=context.uid,
            previous=tuple(context.previous_uids),
            previous_pipelines=tuple(context.previous_pipelines),
            shared_with=tuple(shared_with),
        )

    @property
    def label(self) -> str:
        """Name of now."""
        return f"{self.pipeline}/{self.uid}"

    @property
    def labels(self) -> frozenset[str]:
        """All names, of now and of before."""
        pipelines = (self.pipeline, *self.previous_pipelines)
        return frozenset(f"{one}/{uid}" for one in pipelines for uid in (self.uid, *self.previous))

    def read(self, metadata: Mapping[str, Any], where: str) -> Mark | None:
        """Return the mark in the metadata of a commit, whoever made it; None: it has none.

        Raises Corrupt for one of this sink's that a newer version of the library has written.
        """
        said = {name.removeprefix(PREFIX): v for name, v in metadata.items() if name.startswith(PREFIX)}
        if not said:
            return None
        try:
            version = said.pop("format_version", None)
            if str(version) != "1":
                raise ValueError(f"its format is {version!r}")
            if all(isinstance(value, str) for value in said.values()):
                return Mark.model_validate_strings(said)
            return Mark.model_validate(
                said | {name: tuple(said.get(name) or ()) for name in ("staged", "left")}
            )
        except (ValidationError, ValueError) as error:
            if f"{said.get('pipeline')}/{said.get('sink')}" not in self.labels:
                return None
            raise Corrupt(
                f"{where} carries a mark of a newer version of dagster_ckpt: {error}. Use that one"
            ) from error

    def owners(self, marks: Iterable[Mark]) -> frozenset[str]:
        """Return the owners of rows that these marks show to be this sink's."""
        return self.labels | {mark.owned_by for mark in marks if mark.label in self.labels}

    def why_foreign(self, mark: Mark, place: str) -> str:
        """Return why a table that shows the rows of this mark, which is not the sink's, cannot be written to."""
        shows = f"table {place} shows rows of sink {mark.sink!r} of pipeline {mark.pipeline!r}, and they would be there"
        if mark.pipeline in (self.pipeline, *self.previous_pipelines):
            return (
                f"{shows} twice if {self.uid!r} is that sink under another name: name the old one "
                f"(previous_uids=[{mark.sink!r}]), and it goes on with its rows, or takes them back with restore_from: "
                "none; or give it another table"
            )
        return (
            f"{shows} twice if {self.pipeline!r} is that pipeline under another name: name the old one "
            f"(previous_names=[{mark.pipeline!r}]) and restore its newest snapshot, fork it into a table of its own, "
            "or give the sink another table; where both are to write to this one, say so: "
            f"shared_with=({mark.pipeline!r},)"
        )


def text_of_batches(batches: Iterable[PreparedBatch]) -> str:
    """Return batches, in order, as marks have them."""
    return ",".join(f"{epoch}:{last}" for epoch, last in {b.epoch: b.batch_id for b in batches}.items())


def text_of_key(key: Sequence[str]) -> str:
    """Return a key as marks have it; the order of its columns means nothing."""
    return json.dumps(sorted(key))


def refuse_other_key(mark: Mark | None, key: Sequence[str], place: str) -> None:
    """Raise InvalidRequest where rows that a table shows were written by another key, or by none: some would be there
    twice.
    """
    if mark is None or mark.head is None or mark.key in ("", text_of_key(key)):
        return
    was = parse_json(mark.key)
    raise InvalidRequest(
        f"the rows of table {place} were written {f'by the key {was}' if was else 'without a key'}, and the sink has "
        f"{f'the key {sorted(key)}' if key else 'none'} now: rows of one key could be there several times. Give it "
        "another table, or write all rows again (restore_from: none)"
    )
