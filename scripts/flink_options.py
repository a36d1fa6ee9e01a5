"""The table of ``docs/reference/configuration.md``."""

from __future__ import annotations

from dagster_ckpt.core.flink_options import ELSEWHERE, FLINK_OPTIONS, FORMER, OURS


def rendered() -> str:
    """Return the table of the configuration page."""
    lines = ["| Flink | Flink's default | here | remark |", "|---|---|---|---|"]
    for option in FLINK_OPTIONS:
        here = f"`{option.here}`" if option.here else "-"
        lines.append(f"| `{option.name}` | {option.default} | {here} | {option.note} |")
    lines += [f"| - | - | `{name}` | {note} |" for name, note in OURS.items()]
    lines += [f"| `{name}` | - | - | not supported: {why} |" for name, why in ELSEWHERE.items()]
    former = ", ".join(f"`{name}`" for name in FORMER)
    return "\n".join(
        [
            *lines,
            "",
            f"Keys that Flink has replaced are read as it reads them, with a line in the log: {former}.",
        ]
    )
