"""The file with which a stage tells the readers of its inputs which barriers they may pass."""

from __future__ import annotations

import json
import os
import threading
import uuid
from pathlib import Path

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.channel_cursor import HoldNothing, Released, ReleasedThrough
from dagster_ckpt.spark.staged_files import TEMPORARY_PREFIX

RELEASE_FILE = "released"
_one_writer = threading.Lock()
"""Stage and coordinator threads of one process may release at once; a stage lives in one process."""


class Release:
    """``<stage>/released``: written by the stage runner, read before every batch by the readers of its
    inputs.
    """

    __slots__ = ("_path",)

    def __init__(self, stage_dir: str | Path) -> None:
        self._path = Path(stage_dir) / RELEASE_FILE

    @classmethod
    def at(cls, file: str | Path) -> Release:
        """Return the release whose file is ``file``; raises InvalidRequest for any other file name."""
        path = Path(file)
        if path.name != RELEASE_FILE:
            raise InvalidRequest(f"a release file is named {RELEASE_FILE!r}, got {path}")
        return cls(path.parent)

    @property
    def path(self) -> Path:
        """The file, for the data source's ``release`` option."""
        return self._path

    def read(self) -> Released:
        """Return what is released: nothing, when there is no file. Raises Corrupt when it is damaged."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return ReleasedThrough()
        try:
            through = json.loads(content)["through"]
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"{self._path} is damaged: {error}. Restart the pipeline: it is written anew"
            ) from error
        return HoldNothing() if through == "all" else ReleasedThrough(int(through))

    def through(self, checkpoint_id: CheckpointId) -> None:
        """Let readers pass all barriers up to and including ``checkpoint_id``; never takes a release back."""
        with _one_writer:
            current = self.read()
            if isinstance(current, ReleasedThrough) and checkpoint_id > current.checkpoint_id:
                self._write({"through": int(checkpoint_id)})

    def begin_anew(self, checkpoint_id: CheckpointId) -> None:
        """State what an attempt begins with, also where an earlier one released more; no reader may run."""
        with _one_writer:
            self._write({"through": int(checkpoint_id)})

    def everything(self) -> None:
        """Let readers pass every barrier, also those to come (at-least-once)."""
        with _one_writer:
            self._write({"through": "all"})

    def _write(self, document: dict[str, int | str]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
        temporary.write_text(json.dumps(document))
        os.replace(temporary, self._path)
