"""Staged files as they were staged: compared by size and checksum at the last moment before their rows are shown.

What a micro-batch has staged may wait for long: beside runs, a restore and people who put folders back.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dagster_ckpt.core.paths import Digest
from dagster_ckpt.digests import digest_file
from dagster_ckpt.errors import Corrupt, Unavailable
from dagster_ckpt.spark.files import run_in_parallel
from dagster_ckpt.spark.sink.committables import TableFile

__all__ = ["refuse_changed", "refuse_other_content"]

_AT_ONCE = 4


def refuse_changed(places: Iterable[tuple[TableFile, Path]]) -> None:
    """Raise Corrupt, naming it, where one of these files is gone or is not what was staged. Reads all of them."""
    run_in_parallel(_compare, tuple(places), parallelism=_AT_ONCE)


def refuse_other_content(file: TableFile, found: Digest, named: str) -> None:
    """Raise Corrupt where this is not the content that was staged; no checksum: it was staged before one was kept."""
    if found.size != file.bytes:
        why = f"it has {found.size} bytes and had {file.bytes}"
    elif file.checksum not in ("", found.checksum):
        why = "its checksum differs"
    else:
        return
    raise Corrupt(
        f"{named} is not as it was staged ({why}), so its rows are not published: bring it back, or restore another "
        "checkpoint"
    )


def _compare(place: tuple[TableFile, Path]) -> None:
    file, path = place
    try:
        found = digest_file(path)
    except FileNotFoundError as error:
        raise Corrupt(
            f"staged rows {file.name} are gone ({path} does not exist): restore another checkpoint"
        ) from error
    except OSError as error:
        raise Unavailable(f"staged rows {path} could not be read: {error}") from error
    refuse_other_content(file, found, str(path))
