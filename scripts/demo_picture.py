"""Makes the README's picture of the demo from what it printed: python -m scripts.demo_picture.

``scripts/demo_output.txt`` is the output of a real ``make demo``, shortened; the picture shows it line by line, and at
once to whoever wants less motion.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = ROOT / "scripts" / "demo_output.txt"
PICTURE = ROOT / "docs" / "images" / "demo.svg"

LINE = 20
MARGIN = 20
LETTER = 8.05
"""Width of a letter of 13 px in the fonts named below, at most."""
PER_LINE = 0.35
"""Seconds until the next line."""

STYLE = """
  rect { fill: #16181d }
  text { fill: #c9d1d9; white-space: pre }
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace }
  .step { fill: #7ee787 } .killed { fill: #ff7b72 } .end { fill: #7ee787; font-weight: bold }
  @media (prefers-reduced-motion: no-preference) {
    text { opacity: 0; animation: appear 0.01s linear forwards }
    @keyframes appear { to { opacity: 1 } }
  }
"""


def picture(text: str) -> str:
    """Return the picture of some lines."""
    lines = ["$ make demo", *text.rstrip("\n").split("\n")]
    width = int(max(map(len, lines)) * LETTER) + 2 * MARGIN
    height = len(lines) * LINE + 2 * MARGIN
    shown = [
        f'  <text x="{MARGIN}" y="{MARGIN + LINE * number + 14}" class="{kind_of(line)}" '
        f'style="animation-delay: {PER_LINE * number:.2f}s">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<style>{STYLE}</style>",
            f'  <rect width="{width}" height="{height}" rx="8"/>',
            *shown,
            "</svg>",
            "",
        ]
    )


def kind_of(line: str) -> str:
    """Return the kind of a line, for its color."""
    if line.startswith("nothing lost"):
        return "end"
    if "SIGKILL" in line:
        return "killed"
    return "line" if line.startswith(" ") else "step"


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(picture(TEXT.read_text()))


if __name__ == "__main__":
    main()
