"""Writes the page of why a run refuses to start from the list of its checks: ``python -m scripts.start_checks``."""

from __future__ import annotations

from dagster_ckpt.core.restore.start_checks import START_CHECKS, Part
from tests.root import ROOT

PAGE = ROOT / "docs" / "reference" / "start-checks.md"
_HEAD = """# Why a run refuses to start

A run is refused before anything is changed, with one sentence that says what is the matter and what to do. The checks
in their order, each with what it compares and its sentence; the first that holds is told.
By `python -m scripts.start_checks`.

What a decorator can see is refused while the code is imported; there `dg launch` prints Dagster's trace, which no
library can shorten.

`dagster-ckpt check -f code.py` asks the first three parts of every pipeline, without Java and without a run;
`dg check defs` tells the first, and warns of the second.

Consoles print the sentence alone; with `--traceback`, or `DAGSTER_CKPT_TRACEBACK=1`, also where it comes from, and
Spark's pages of failed tasks.

Mistakes of the first day; `python -m tests.first_day` makes them (at most 15 lines each, Spark's among them):

| told | mistakes |
|---|---|
| without Java | key named twice, output mode, `return`, names, settings, store, password, extras, folder, no Java |
| before a row | missing key or column, aggregation, path, type, `spark.read`, restore point, uid, storage gone |
| with the row | failing function, JSON (`FAILFAST`) |
| as a warning | `rand()` in a key, JSON |
"""
_PARTS = {
    Part.CODE: (
        "The code",
        "Known once the code is imported; a code location that is refused does not load.",
    ),
    Part.MACHINE: ("The machine", "Known on the machine of the run, before Java starts."),
    Part.STORE: ("The store", "The first call to it, before Java starts."),
    Part.REQUEST: ("The request", "What the run was launched with. `restore_from` is read here, once."),
    Part.HISTORY: (
        "The history",
        "What the store has recorded, beside all that was seen of the pipeline elsewhere.",
    ),
    Part.SNAPSHOT: ("The snapshot", "Its metadata, beside the pipeline as the code has it now."),
    Part.OUTSIDE: (
        "Sources and sinks",
        "Asked last; the pipeline is claimed only once none of them refuses.",
    ),
}
_END = """
What comes after, before a row is read: files of the snapshot are compared with their digests, sinks are brought to the
restore point, and each query's plan is compared with the one its state was made by
([Change what a stage does](../how-to/change-a-stage.md)).
"""


def page() -> str:
    """Return the page with today's list."""
    text = _HEAD
    for part, (title, known) in _PARTS.items():
        text += f"\n## {title}\n\n{known}\n\n"
        for check in START_CHECKS:
            if check.part is part:
                text += (
                    f"* **{check.name}**: {check.compares}. “{check.sentence}” Ways out: {check.ways_out}.\n"
                )
    return text + _END


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
