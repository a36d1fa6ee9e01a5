"""The file with which a stage tells the readers of its inputs which barriers they may pass."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.channel.cursor import HoldNothing, Released, ReleasedThrough
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import classified, replace_whole

_one_writer = threading.Lock()
"""Stage and coordinator threads of one process may release at once; a stage lives in one process."""


class Release:
    """``<stage>/released``: written by the stage runner, read before every batch by the readers of its
    inputs.
    """

    __slots__ = ("_path",)

    def __init__(self, stage_dir: str | Path) -> None:
        self._path = StageDirectory(Path(stage_dir)).released

    @classmethod
    def at(cls, file: str | Path) -> Release:
        """Return the release whose file is ``file``; raises InvalidRequest for any other file name."""
        path = Path(file)
        release = cls(path.parent)
        if path.name != release.path.name:
            raise InvalidRequest(f"a release file is named {release.path.name!r}, got {path}")
        return release

    @property
    def path(self) -> Path:
        """The file, for the data source's ``release`` option."""
        return self._path

    def read(self) -> Released:
        """Return the barriers that are released: none, when there is no file. Raises Corrupt when it is damaged."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return ReleasedThrough()
        try:
            through = parse_json(content)["through"]
            return HoldNothing() if through == "all" else ReleasedThrough(CheckpointId(int(through)))
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            raise Corrupt(
                f"{self._path} is damaged: {error}. Restart the pipeline: it is written again"
            ) from error

    def through(self, checkpoint_id: CheckpointId) -> None:
        """Let readers pass all barriers up to and including ``checkpoint_id``; never takes a release back."""
        with _one_writer:
            current = self.read()
            if isinstance(current, ReleasedThrough) and checkpoint_id > current.checkpoint_id:
                self._write({"through": int(checkpoint_id)})

    def reset(self, checkpoint_id: CheckpointId) -> None:
        """State what an attempt begins with, also where an earlier one released more; no reader may run."""
        with _one_writer:
            self._write({"through": int(checkpoint_id)})

    def everything(self) -> None:
        """Let readers pass every barrier, also those to come (at-least-once)."""
        with _one_writer:
            self._write({"through": "all"})

    def _write(self, document: dict[str, int | str]) -> None:
        with classified(f"letting readers pass a barrier ({self._path})"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_whole(self._path, json.dumps(document).encode(), durably=False)
