"""Rows that a table shows beside those it shows at a cut, asked beside its pipeline; nothing is changed."""

from __future__ import annotations

from typing import Any

from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.sink.committables import batches_with_rows, shown_files
from dagster_ckpt.spark.sink.port import Difference, SinkCut
from dagster_ckpt.spark.sink.versioned.backend import Backend
from dagster_ckpt.spark.sink.versioned.marks import text_of_key
from dagster_ckpt.spark.sink.versioned.version import State, Version


def difference(backend: Backend[Any], cut: SinkCut) -> Difference | None:
    """Return how many rows the table shows, and how many at the cut; None: its metadata does not tell.

    Raises Corrupt where rows of the cut are gone.
    """
    version: Version | None = backend.load()
    batches = batches_with_rows(cut.batches)
    whole = version.showing(cut.checkpoint_id) if version is not None and batches else None
    prepared, replaces = shown_files(() if whole is not None else batches)
    backend.staged.refuse_changed(prepared)
    then = whole or _at_head(backend, version, cut.snapshot.head)
    if version is not None and then is not None:
        backend.refuse_lost(version, then)
    now = 0 if version is None or version.number is None else version.rows_at(version.number)
    kept = 0 if then is None or version is None or replaces else version.rows_at(then.number)
    if now is None or kept is None:
        return None
    mark = None if version is None else version.mark
    shown = None if mark is None else mark.head
    return Difference(
        is_same=not prepared and shown == (None if then is None or then.mark is None else then.mark.head),
        by_key=mark is not None and mark.key not in ("", text_of_key(())),
        rows_now=now,
        rows_then=kept + sum(file.rows for file in prepared),
    )


def _at_head(backend: Backend[Any], version: Version | None, head: int | None) -> State | None:
    if head is None:
        return None
    found = None if version is None else version.showing(head)
    if found is None:
        raise Corrupt(
            f"table {backend.place} does not tell of checkpoint {head}: it was removed, or is another one, or keeps "
            "less than the snapshots. Bring it back from a backup, or choose a later checkpoint"
        )
    return found
