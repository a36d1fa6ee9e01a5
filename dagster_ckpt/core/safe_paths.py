"""Paths and names read from a file that somebody else may have written: below their folder, or refused.

A savepoint may come from anywhere. Whatever it names is joined to a folder of ours, so this is checked where a record
is read and nowhere later. Standard library only: Python workers read channel entries.
"""

from __future__ import annotations

import re

__all__ = ["file_name", "relative_path"]

_DRIVE = re.compile(r"[A-Za-z]:")


def relative_path(text: str) -> str:
    """Return a '/'-separated path that stays below the folder it is joined to. Raises ValueError for any other."""
    wrong = not isinstance(text, str) or "\\" in text or "\0" in text or _DRIVE.match(text) is not None
    if wrong or any(part in ("", ".", "..") for part in text.split("/")):
        raise ValueError(f"{_shown(text)} is no path below its folder")
    return text


def file_name(text: str) -> str:
    """Return the name of a file or folder: one part of a path. Raises ValueError for anything else."""
    if "/" in relative_path(text):
        raise ValueError(f"{_shown(text)} is no plain name")
    return text


def _shown(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 200 else f"{shown[:200]}…"
