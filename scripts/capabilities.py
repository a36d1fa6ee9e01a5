"""Writes the table of capabilities into docs/architecture.md: ``python -m scripts.capabilities``.

Each file of the library and each test belongs to the capability whose path is the longest that leads to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scripts.house import PACKAGE, sources

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
_BEGIN = "<!-- capabilities: made by `python -m scripts.capabilities` -->\n"
_END = "<!-- end of capabilities -->"


@dataclass(frozen=True)
class Capability:
    """A thing the library can do, and the paths of its code and of its tests."""

    what: str
    code: tuple[str, ...]
    tests: tuple[str, ...]


KERNEL = (
    Capability(
        "names, settings, models that all share", ("core", "errors.py", "ports.py", "digests.py"), ("core",)
    ),
    Capability("the coordinator's decisions", ("core/coordinator", "core/checkpoint"), ("core/checkpoint",)),
    Capability(
        "barriers at inputs; a stage's side",
        ("core/alignment", "core/subtask"),
        ("core/alignment", "core/subtask"),
    ),
    Capability("what is kept, shared, deleted", ("core/files",), ("core/files",)),
    Capability("the start of an attempt", ("core/restore", "core/restore_point.py"), ("core/restore",)),
    Capability("a pipeline watched from outside", ("core/supervision",), ("core/supervision",)),
    Capability("one writer of the record; effects", ("runtime",), ("coordinator", "model", "crash")),
    Capability("stores and storages", ("adapters",), ("adapters", "contract")),
    Capability("what authors write", ("authoring", "sinks.py"), ("authoring",)),
    Capability("a run's host, in any process", ("running.py", "programs.py", "pipes.py"), ("e2e",)),
    Capability("sessions, errors of Java, clusters", ("spark",), ("spark", "platforms")),
    Capability("a stage's state captured and restored", ("spark/snapshot",), ("spark/snapshot",)),
    Capability("channels", ("spark/channel",), ("spark/channel",)),
    Capability("sinks: the port, staged rows", ("spark/sink",), ("spark/sink",)),
    Capability("positions of sources", ("spark/source",), ("spark/source",)),
    Capability("may a changed query go on", ("spark/plan",), ("spark/plan",)),
    Capability("what both kinds of run start with", ("spark/attempt",), ("spark/attempt",)),
    Capability("epochs", ("spark/epoch",), ("spark/epoch",)),
    Capability("streams", ("spark/streaming",), ("spark/streaming",)),
    Capability("no disk that lasts", ("spark/exchange",), ("spark/exchange", "spark/lake")),
    Capability("executors on other machines", ("spark/cluster",), ("spark/cluster",)),
)
SURFACES = (
    Capability("operations on snapshots", ("operations",), ("operations",)),
    Capability("Dagster", ("dagster",), ("dagster", "browser")),
    Capability("the command line", ("cli",), ("cli",)),
    Capability("the page", ("page",), ("page",)),
    Capability("harness, fakes, contracts", ("testing",), ("testing", "attack")),
)
EXTENSIONS = (
    Capability(
        "Delta, Iceberg, their engine",
        ("ext/tables", "ext/delta", "ext/iceberg"),
        ("ext/tables", "ext/delta", "ext/iceberg"),
    ),
    Capability("PostgreSQL, SQLite", ("ext/sql",), ("ext/sql",)),
    Capability("Kafka", ("ext/kafka",), ("ext/kafka",)),
    Capability("Spark declarative pipelines", ("ext/spark_pipelines",), ("ext/spark_pipelines",)),
    Capability("conditions on rows, quarantine", ("ext/quarantine",), ("ext/quarantine",)),
    Capability("programs as they are", ("ext/attach",), ("ext/attach",)),
    Capability("a change judged in a pull request", ("ext/upgrade_plan",), ("ext/upgrade_plan",)),
    Capability("warm engines; metrics", ("ext/warm", "ext/metrics"), ("ext/warm", "ext/metrics")),
)
CHAPTERS = (("kernel", KERNEL), ("surfaces", SURFACES), ("extensions", EXTENSIONS))


def lines(folder: Path, paths: Iterable[str], all_paths: Iterable[str]) -> int:
    """Return the lines of the files to which one of the paths is the longest that leads."""
    known = sorted(all_paths, key=len, reverse=True)
    owned = set(paths)
    return sum(
        len(file.read_text().splitlines())
        for file in sources(folder)
        if next((path for path in known if leads_to(path, file.relative_to(folder).as_posix())), None)
        in owned
    )


def leads_to(path: str, file: str) -> bool:
    """Return whether a path is a file's, or a folder's above it."""
    return file == path or file.startswith(f"{path}/")


def figures() -> dict[Capability, tuple[int, int]]:
    """Return the lines of code and of tests of each capability."""
    capabilities = [each for _, chapter in CHAPTERS for each in chapter]
    code = [path for each in capabilities for path in each.code]
    tests = [path for each in capabilities for path in each.tests]
    return {
        each: (lines(ROOT / PACKAGE, each.code, code), lines(ROOT / "tests", each.tests, tests))
        for each in capabilities
    }


def table() -> str:
    """Return the table, with lines in hundreds."""
    found = figures()
    rows = ["| capability | folder | lines | of tests |\n|---|---|---:|---:|\n"]
    for name, chapter in CHAPTERS:
        of_code, of_tests = (sum(found[each][which] for each in chapter) for which in (0, 1))
        rows.append(f"| **{name}** | | **{rounded(of_code)}** | **{rounded(of_tests)}** |\n")
        for each in chapter:
            code = ", ".join(f"`{path}`" for path in each.code)
            rows.append(f"| {each.what} | {code} | {rounded(found[each][0])} | {rounded(found[each][1])} |\n")
    return "".join(rows)


def rounded(count: int) -> str:
    """Return a number of lines to the nearest hundred."""
    return f"{round(count, -2):,}"


def page(text: str) -> str:
    """Return the page with today's table in it."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}{table()}{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
