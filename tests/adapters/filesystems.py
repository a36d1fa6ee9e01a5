"""fsspec file systems for tests: a remote folder without atomic puts, and an object store that fails on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem


class RemoteFolder(LocalFileSystem):  # type: ignore[misc]
    """A local folder behind a protocol that does not count as local, as SFTP or HDFS would be."""

    protocol = "remotefolder"

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(path).removeprefix("remotefolder://").rstrip("/")


class FlakyObjects(MemoryFileSystem):  # type: ignore[misc]
    """An object store whose puts and looks misbehave as ``on_put`` and ``on_look`` say."""

    protocol = "r2"
    store: dict[str, Any] = {}  # noqa: RUF012 (the base class keeps its files so)
    pseudo_dirs = [""]  # noqa: RUF012
    on_put: Callable[[Callable[[], None]], None] | None = None
    on_look: Callable[[], None] | None = None

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return "/" + str(path).removeprefix("r2://").strip("/")

    def pipe_file(self, path: str, value: bytes, **settings: Any) -> None:
        def put() -> None:
            MemoryFileSystem.pipe_file(self, path, value, **settings)

        chosen, type(self).on_put = type(self).on_put, None
        if chosen is None:
            put()
        else:
            chosen(put)

    def put_file(self, lpath: str, rpath: str, **settings: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def info(self, path: str, **settings: Any) -> Any:
        if type(self).on_look is not None:
            type(self).on_look()
        return MemoryFileSystem.info(self, path, **settings)

    def exists(self, path: str, **settings: Any) -> bool:
        if type(self).on_look is not None:
            type(self).on_look()
        return bool(MemoryFileSystem.exists(self, path, **settings))


def register() -> None:
    """Make both known to fsspec under their protocols."""
    fsspec.register_implementation("remotefolder", RemoteFolder, clobber=True)
    fsspec.register_implementation("r2", FlakyObjects, clobber=True)
