"""A folder of a storage as a storage of its own: what a URI below a known base names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dagster_ckpt.core.paths import AlreadyExists, Digest, StoredObject
from dagster_ckpt.ports import CheckpointStorage


class NestedStorage:
    """The keys of ``inner`` below ``prefix``."""

    def __init__(self, inner: CheckpointStorage, prefix: str) -> None:
        self.base_uri = f"{inner.base_uri}/{prefix}"
        self._inner = inner
        self._prefix = prefix

    def create(self, key: str, source: bytes | Path) -> Digest | AlreadyExists:
        """Store under a new key."""
        made = self._inner.create(f"{self._prefix}/{key}", source)
        return AlreadyExists(key) if isinstance(made, AlreadyExists) else made

    def read(self, key: str) -> bytes:
        """Return the whole content. Raises NotFound."""
        return self._inner.read(f"{self._prefix}/{key}")

    def fetch(self, key: str, target: Path, expected: Digest) -> None:
        """Write the content to a new local file, verified."""
        self._inner.fetch(f"{self._prefix}/{key}", target, expected)

    def list(self, prefix: str) -> Iterable[StoredObject]:
        """Yield every object below ``prefix``."""
        whole = f"{self._prefix}/{prefix}" if prefix else self._prefix
        cut = len(self._prefix) + 1
        return iter([StoredObject(item.key[cut:], item.size) for item in self._inner.list(whole)])

    def delete(self, keys: Sequence[str]) -> None:
        """Remove exactly these keys."""
        self._inner.delete([f"{self._prefix}/{key}" for key in keys])
