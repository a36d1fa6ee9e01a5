"""Output of the program: tables, JSON on request, progress bars on long work."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel
from rich.console import Console, RenderableType
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.paths import snapshot_key
from dagster_ckpt.errors import printable
from dagster_ckpt.operations.deployment import ByteProgress, ProgressCallback, silent

if TYPE_CHECKING:
    from dagster_ckpt.spark.source.positions import SourceLag

_SIMPLE = (str, int, float, bool, type(None))


def plain(value: Any) -> Any:
    """Return ``value`` as JSON can say it: dataclasses with their simple properties, records, enums."""
    if isinstance(value, Mapping):
        return {str(plain(name)): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return _of_dataclass(value)
    return _of_single(value)


def _of_single(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, _SIMPLE) else str(value)


def _of_dataclass(value: Any) -> dict[str, Any]:
    found = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    properties = [name for name, part in vars(type(value)).items() if isinstance(part, property)]
    for name in properties:
        computed = getattr(value, name)
        if isinstance(computed, _SIMPLE):
            found[name] = plain(computed)
    return found


_PIPE_WIDTH = 10_000
"""Columns where nobody has a terminal: in a table that is piped on no cell may be broken, however long a place is."""


_KEYS = {
    r"`?roll_back_tables`?(?:: false| = false)": "--keep-rows",
    r"`?keep_rows_of`?: \[([^],]*)\]": r"--keep-rows-of \1",
    r"`?keep_rows_of`?": "--keep-rows-of",
    r"`?allow_non_restored_state`?(?:: true| = true)?": "--allow-non-restored-state",
    r"`?allow_missing_files`?(?:: true| = true)?": "--allow-missing-files",
    r"restore_from(?::| =)? '?(none|latest)\b'?": r"restore \1",
    r"(with|,|;|:) restore_from(?! ')": r"\1 restore",
    r"restore_from(?= ')": "SNAPSHOT",
}
"""Keys of a run's config as sentences name them, and what the command line has instead."""


def as_options(text: str) -> str:
    """Return a sentence about a restore with the options of this program in place of the keys of a run's config."""
    for key, option in _KEYS.items():
        text = re.sub(key, option, text)
    return text


class Output:
    """Writes a command's result: for people, or as one JSON document."""

    def __init__(self, *, as_json: bool, places: str = "") -> None:
        self.as_json = as_json
        self._places = places
        """Options by which this command finds the deployment: a command that it prints needs them too."""
        width = None if sys.stdout.isatty() else _PIPE_WIDTH
        self._console = Console(width=width, highlight=False, soft_wrap=False)

    def result(self, value: Any) -> None:
        """Write the JSON document, where it is wanted; else nothing."""
        if self.as_json:
            click.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))

    def worded(self, text: str) -> str:
        """Return a text as it is printed here: with this program's options, and commands that run as they stand."""
        if self._places and "dagster-ckpt " in text:
            from dagster_ckpt.cli.app import COMMANDS_HERE

            text = re.sub(rf"dagster-ckpt ({'|'.join(COMMANDS_HERE)})(?= )", rf"\g<0> {self._places}", text)
        return printable(as_options(text))

    def say(self, text: str) -> None:
        """Write a line for people."""
        if not self.as_json:
            self._console.print(self.worded(text), markup=False, soft_wrap=True)

    def snapshot(self, kind: CheckpointKind, number: CheckpointId, uri: str) -> None:
        """Write what was taken without a run of Dagster's."""
        newest = {"key": snapshot_key(kind, number), "uri": uri}
        self.result({"run": None, kind.noun: newest})
        self.say(f"{newest['key']}: {uri}")

    def show(self, what: RenderableType) -> None:
        """Write something drawn for people."""
        if not self.as_json:
            self._console.print(what)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write a table for people; columns whose name ends in ``>`` are numbers."""
        if self.as_json:
            return
        table = Table(title=_title(title), title_justify="left", title_style="bold")
        for name in columns:
            justify: Any = "right" if name.endswith(">") else "left"
            table.add_column(name.removesuffix(">"), justify=justify, overflow="fold")
        for row in rows:
            table.add_row(*("-" if cell is None else self.worded(str(cell)) for cell in row))
        self._console.print(table, markup=False)

    def list(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Write a narrow table without lines: no cell is broken but those of the last column."""
        if self.as_json:
            return
        table = Table(title=_title(title), title_justify="left", title_style="bold", box=None, pad_edge=False)
        for name in columns:
            justify: Any = "right" if name.endswith(">") else "left"
            last = name == columns[-1]
            table.add_column(name.removesuffix(">"), justify=justify, no_wrap=not last, overflow="fold")
        for row in rows:
            table.add_row(*map(self.worded, row))
        self._console.print(table, markup=False)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Show on a terminal's standard error that work goes on whose end cannot be foreseen."""
        if self.as_json or not sys.stderr.isatty():
            yield
            return
        with Console(stderr=True).status(f"{what} …"):
            yield

    @contextmanager
    def progress(self, what: str) -> Iterator[ProgressCallback]:
        """Yield a callback that moves a bar on standard error; without a terminal nothing is shown."""
        if self.as_json or not sys.stderr.isatty():
            yield silent
            return
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None)

            def move(progress: ByteProgress) -> None:
                bar.update(task, completed=progress.done, total=progress.total)

            yield move


def _title(text: str) -> Text | None:
    """Return a table's title as it is: rich would take what is in brackets for its own markup."""
    return Text(printable(text)) if text else None


def show_positions(output: Output, positions: Sequence[SourceLag]) -> None:
    """Show each partition's offset, and how far behind its end it is."""
    rows = [
        (source.stage, one.topic, str(one.partition), str(one.offset), _number(one.latest), _number(one.lag))
        for source in positions
        for one in source.partitions
    ]
    if rows:
        columns = ("source", "topic", "partition>", "offset>", "latest>", "lag>")
        output.list("positions in topics", columns, rows)
    for source in positions:
        if source.problem:
            output.say(f"how far behind {source.stage} is, is not known: {source.problem}")


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
