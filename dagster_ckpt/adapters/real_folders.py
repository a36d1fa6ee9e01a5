"""Folders of an Azure account with a hierarchical namespace: there by themselves, and there still when they are empty.

Elsewhere a folder of an object store is a part of names, and gone with the last of them. Here every listing would go
through the folders of all checkpoints and batches that ever were: so they are removed behind the last object in them.
Whether an account has them is proved at first use: a file is put into a folder that nobody has made.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePosixPath
from threading import Lock
from typing import Any

from dagster_ckpt.adapters.client_errors import has_no_answer
from dagster_ckpt.adapters.local_keys import partial_name

_MAY_HAVE = ("abfs", "abfss", "az")
_MARKS = ("hdi_isfolder", "Hdi_isfolder")
"""In the metadata of a folder that is there by itself."""


def with_client(protocol: str, fs: Any, root: str) -> RealFolders | None:
    """Return the folders below ``root`` as fsspec's client sees them; None: the protocol has none."""
    return RealFolders(fs, root) if protocol in _MAY_HAVE else None


class RealFolders:
    """Folders below ``root``; ``fs`` is adlfs."""

    def __init__(self, fs: Any, root: str) -> None:
        self._fs, self._root = fs, root
        self._are_real: bool | None = None
        self._asking = Lock()

    def are_real(self) -> bool:
        """Tell whether folders are there by themselves; asked once, and again where the account was not reached."""
        with self._asking:
            if self._are_real is None:
                try:
                    self._are_real = self._is_made_by_a_file()
                except Exception as error:
                    self._are_real = None if has_no_answer(error) else False
            return bool(self._are_real)

    def remove_empty(self, folder: str) -> None:
        """Remove a folder, and those it is in, as far as they are empty: one that is not refuses."""
        while folder not in ("", "."):
            try:
                self._fs.rm_file(f"{self._root}/{folder}")
            except FileNotFoundError:
                pass  # another deletion was faster
            except Exception:  # not empty, or it may not be removed: nothing depends on it
                return
            folder = str(PurePosixPath(folder).parent)

    def is_one(self, path: str) -> bool:
        """Tell whether a path is a folder: reading one gives nothing, and no error."""
        return bool(self._fs.info(path, refresh=True)["type"] == "directory")

    def _is_made_by_a_file(self) -> bool:
        folder = f"{self._root}/{partial_name()}"
        file = f"{folder}/{partial_name()}"
        self._fs.pipe_file(file, b"")
        try:
            metadata = self._fs.info(folder, refresh=True).get("metadata") or {}
        finally:
            for path in (file, folder):
                with suppress(Exception):
                    self._fs.rm_file(path)
        return any(mark in metadata for mark in _MARKS)
