"""fsspec file systems for tests: a remote folder without atomic puts, and an object store that fails on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath
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


class ConditionalObjects(MemoryFileSystem):  # type: ignore[misc]
    """An object store that can refuse a second creation, with the words of adlfs (``az``) and of gcsfs (``gcs``)."""

    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    words: dict[str, Any] = {}  # noqa: RUF012
    """What was kept beside an object."""
    honors = True
    on_put: Callable[[Callable[[], None]], None] | None = None

    @classmethod
    def reset(cls) -> None:
        cls.store.clear()
        cls.words.clear()
        cls.honors, cls.on_put = True, None

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return (
            "/" + str(path).partition("://")[2].strip("/")
            if "://" in str(path)
            else "/" + str(path).strip("/")
        )

    @classmethod
    def put_another(cls, uri: str, content: bytes) -> None:
        """Put an object that another writer has made."""
        MemoryFileSystem.pipe_file(cls(), cls._strip_protocol(uri), content)

    def _pipe_file(self, path: str, value: bytes, overwrite: bool = True, **settings: Any) -> None:
        """What tells that the client knows the condition."""

    def pipe_file(self, path: str, value: bytes, mode: str = "", **settings: Any) -> None:
        cls = type(self)

        def put() -> None:
            if mode == "create" and cls.honors and MemoryFileSystem.exists(self, path):
                raise FileExistsError(path)
            MemoryFileSystem.pipe_file(self, path, value)
            cls.words[path] = settings

        if "dagster-ckpt-part" in path:  # the proof that the condition is honored
            put()
            return
        chosen, ConditionalObjects.on_put = ConditionalObjects.on_put, None
        if chosen is None:
            put()
        else:
            chosen(put)

    def put_file(self, lpath: str, rpath: str, mode: str = "", **settings: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes(), mode, **settings)

    def info(self, path: str, **settings: Any) -> Any:
        return {**MemoryFileSystem.info(self, path), **ConditionalObjects.words.get(path, {})}

    def find(self, path: str, **settings: Any) -> Any:
        """As adlfs: what is an object itself is named, whatever was asked for."""
        if MemoryFileSystem.isfile(self, path):
            return [path]
        return MemoryFileSystem.find(self, path, **settings)


class FolderNotEmpty(FileExistsError):
    """As azure.core's ResourceExistsError for a folder with something in it."""

    status_code = 409


class HierarchicalObjects(ConditionalObjects):
    """An Azure account with a hierarchical namespace, as adlfs shows it through the Blob endpoint.

    A put makes the folders it is in. They stay when they are empty, are listed as objects of no bytes, can be read as
    such, and are removed as an object is, by a request that refuses where there is something in them.
    """

    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    folders: set[str] = set()  # noqa: RUF012
    lists_folders = False
    """A client that names them beside the files it was asked for."""

    @classmethod
    def reset(cls) -> None:
        super().reset()
        cls.folders.clear()
        cls.lists_folders = False

    def pipe_file(self, path: str, value: bytes, mode: str = "", **settings: Any) -> None:
        if path in self.folders:
            raise FileExistsError(path)
        super().pipe_file(path, value, mode, **settings)
        self.folders.update(parent.as_posix() for parent in PurePosixPath(path).parents[:-1])

    def cat_file(self, path: str, **settings: Any) -> bytes:
        return b"" if path in self.folders else bytes(super().cat_file(path, **settings))

    def get_file(self, rpath: str, lpath: str, **settings: Any) -> None:
        Path(lpath).write_bytes(self.cat_file(rpath))

    def exists(self, path: str, **settings: Any) -> bool:
        return path in self.folders or bool(super().exists(path, **settings))

    def info(self, path: str, **settings: Any) -> Any:
        if path in self.folders:
            return {"name": path, "size": None, "type": "directory", "metadata": {"hdi_isfolder": "true"}}
        return super().info(path, **settings)

    def rm_file(self, path: str) -> None:
        if path not in self.folders:
            super().rm_file(path)
            return
        if any(other.startswith(f"{path}/") for other in [*self.store, *self.folders]):
            raise FolderNotEmpty("This operation is not permitted on a non-empty directory.")
        self.folders.discard(path)

    def find(self, path: str, **settings: Any) -> Any:
        if path in self.store:
            return [path]
        below = [(name, file) for name, file in [*self.store.items()] if name.startswith(f"{path}/")]
        files = {name: {"name": name, "size": file.size, "type": "file"} for name, file in below}
        if not self.lists_folders:
            return files
        folders = [name for name in [*self.folders] if name.startswith(f"{path}/")]
        return files | {name: {"name": name, "size": None, "type": "directory"} for name in folders}


def register_hierarchical() -> None:
    """Make such an account known to fsspec as ``az``, in the place of the real client."""
    fsspec.register_implementation("az", HierarchicalObjects, clobber=True)


def register_conditional(protocol: str) -> None:
    """Make such a store known to fsspec under a protocol, in the place of the real client."""
    fsspec.register_implementation(protocol, ConditionalObjects, clobber=True)


def register() -> None:
    """Make both known to fsspec under their protocols."""
    fsspec.register_implementation("remotefolder", RemoteFolder, clobber=True)
    fsspec.register_implementation("r2", FlakyObjects, clobber=True)
