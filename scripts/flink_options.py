"""The table of ``docs/reference/configuration.md``."""

from __future__ import annotations

from itertools import groupby

from dagster_ckpt.core.flink_options import ELSEWHERE, FLINK_OPTIONS, FORMER, OURS


def rendered() -> str:
    """Return the table of the configuration page."""
    lines = ["| Flink | Flink's default | here | remark |", "|---|---|---|---|"]
    for (here, note, _), options in groupby(
        FLINK_OPTIONS, key=lambda each: (each.here, each.note, each.here and each.name)
    ):
        same = list(options)
        names, defaults = (
            ", ".join(f"`{each.name}`" for each in same),
            ", ".join(each.default for each in same),
        )
        lines.append(f"| {names} | {defaults} | {f'`{here}`' if here else '-'} | {note} |")
    lines += [f"| - | - | `{name}` | {note} |" for name, note in OURS.items()]
    for why in dict.fromkeys(ELSEWHERE.values()):
        names = ", ".join(f"`{name}`" for name, because in ELSEWHERE.items() if because == why)
        lines.append(f"| {names} | - | - | not supported: {why} |")
    former = ", ".join(f"`{name}`" for name in FORMER)
    return "\n".join(
        [
            *lines,
            "",
            f"Keys that Flink has replaced are read as it reads them, with a line in the log: {former}.",
        ]
    )
