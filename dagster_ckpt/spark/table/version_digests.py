"""Digests of bucket versions, kept beside them: a record of their publish is written before they are.

A digest is there before its version is: whoever finds a version without one has a file of before digests were kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dagster_ckpt.core.storage import Digest
from dagster_ckpt.digests import digest_file
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.files import replace_all_whole

__all__ = ["digest_path", "keep_digests", "refuse_other_content"]


def digest_path(version: Path) -> Path:
    """Return where a version's digest lies."""
    return version.with_suffix(".digest")


def keep_digests(written: Mapping[Path, Path]) -> None:
    """Write down, durably, the digest of every file that is about to become a version: version -> where it lies now."""
    found = {version: digest_file(file) for version, file in written.items()}
    replace_all_whole({digest_path(v): f"{d.size} {d.checksum}\n".encode() for v, d in found.items()})


def _kept(version: Path) -> Digest | None:
    """Return a version's digest; None where none was kept. Raises Corrupt."""
    place = digest_path(version)
    try:
        size, checksum = place.read_text().split()
        return Digest(int(size), checksum)
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise Corrupt(f"{place} is damaged: {error}; bring it back, or choose another checkpoint") from error


def refuse_other_content(version: Path) -> None:
    """Raise Corrupt where a version is not what was written. Reads all of it."""
    kept = _kept(version)
    if kept is not None and digest_file(version) != kept:
        raise Corrupt(
            f"{version} is not as it was written (size or checksum differ): bring it back from a backup, or restore "
            "another checkpoint"
        )
