"""Parts of a deployment that an attacker takes copies of, and what is done with them: put back, lost, swapped."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.attack.deployment import Deployment
from tests.attack.outsides import TABLES, Kind, waiting


class Action(StrEnum):
    """What happens to a part."""

    BACK = "put back"
    """It is as it was in an older copy."""
    OVER = "put over"
    """An older copy is laid over it: what came since stays beside it."""
    LOST = "lost"
    SWAPPED = "swapped"
    """It is the other deployment's."""
    CHANGED = "changed by a byte"
    EXCHANGED = "exchanged with another file"


ACTIONS = (Action.BACK, Action.OVER, Action.LOST, Action.SWAPPED)
"""What happens to whole parts, and to files that are compared by what they say."""
ON_STAGED = (Action.LOST, Action.CHANGED, Action.EXCHANGED)
"""What happens to staged rows; in an older copy, and in another deployment, they have other names."""

WHOLE = {
    "store": "store",
    "storage": "checkpoints",
    "work": "work",
    "rows": "tables/rows",
    "newest": "tables/newest",
}
"""Whole parts, and their folders."""

STAGED = {f"one waiting file of {table}": table for table in TABLES}
"""Staged rows that no reader sees yet."""

SINGLE = {
    "one checkpoint's _metadata": ("checkpoints/*/chk-*/_metadata",),
    "one shared file": ("checkpoints/*/shared/**/*",),
    "one file of a checkpoint": ("checkpoints/*/chk-*/**/*",),
    "attempt.json": ("work/*/attempt-*/attempt.json",),
    "one published.json": ("work/*/attempt-*/*/sink/published.json",),
    "one committable": ("work/*/attempt-*/*/sink/prepared/*.json",),
    "one offset of a query": ("work/*/attempt-*/*/query/offsets/*",),
    "one commit of a query": ("work/*/attempt-*/*/query/commits/*",),
    "one channel log entry": ("work/*/attempt-*/*/log/0*.json",),
}
"""Single files, and where they are looked for."""

ALL_SINGLE = SINGLE | dict.fromkeys(STAGED, ())


def whole_of(kind: Kind) -> list[str]:
    """Return the whole parts of such a deployment; what a function has done is known to nobody but its outside."""
    return [part for part in WHOLE if kind is not Kind.FUNCTION or part != "rows"]


@dataclass(frozen=True)
class Attack:
    """One part, what happened to it, and the copy it came from."""

    part: str
    action: Action
    path: str
    """Relative to the deployment."""
    copy: Path | None = None

    def __str__(self) -> str:
        where = f" ({self.path})" if self.part in ALL_SINGLE else ""
        moment = (
            f" to {self.copy.name}" if self.copy is not None and self.action is not Action.SWAPPED else ""
        )
        return f"{self.part}{where} {self.action}{moment}"

    def perform(self, deployment: Deployment) -> None:
        """Do it to what is there now."""
        target = deployment.root / self.path
        if self.action in (Action.CHANGED, Action.EXCHANGED):
            self._rewrite(target)
            return
        if self.action is not Action.OVER:
            _remove(target)
        if deployment.kind in (Kind.SQL, Kind.ICEBERG) and target.parent == deployment.root / "tables":
            (deployment.root / self.path).mkdir(parents=True, exist_ok=True)  # SQLite makes no folder
        if self.action is Action.LOST or self.copy is None:
            return
        source = self.copy / self.path
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)

    def _rewrite(self, target: Path) -> None:
        """Give a file other content; who has it under another name keeps what it was."""
        if not target.is_file():  # another attack was here
            return
        content = bytearray(target.read_bytes())
        content[len(content) // 5] ^= 1  # in a data page
        if self.copy is not None and self.copy.is_file():
            content = bytearray(self.copy.read_bytes())
        target.unlink()
        target.write_bytes(content)

    def is_named_in(self, text: str, deployment: Deployment) -> bool:
        """Tell whether a refusal says what happened to be attacked, so that a person knows where to look."""
        words = {
            "store": ["coordinator store", "store was"],
            "storage": ["checkpoint storage", str(deployment.storage)],
            "work": ["working directory", str(deployment.root / "work")],
        }
        if deployment.kind is Kind.FUNCTION:
            words["work"].append("function:")  # the note of its calls lies there
        names = [*words.get(self.part, [])]
        if self.path.startswith("tables/"):
            names.append(
                "/".join(str(deployment.root / self.path).split("/")[: len(deployment.root.parts) + 1])
            )
        if self.part in ALL_SINGLE:
            names += [str(deployment.root / self.path), self.path.rsplit("/", 1)[-1]]
            if self.path.startswith("work/"):
                names += words["work"]
            if self.path.startswith("checkpoints/"):
                names += [*words["storage"], "/".join(self.path.split("/")[2:])]
        return any(name in text for name in names)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def attack_on(
    part: str, action: Action, deployment: Deployment, copy: Path, *, other: Path, dice: random.Random
) -> Attack | None:
    """Return the attack on a part; None where there is no such file."""
    if part in STAGED:
        return _on_staged(part, dice.choice(ON_STAGED), deployment, other=other, dice=dice)
    chosen = {Action.BACK: copy, Action.OVER: copy, Action.SWAPPED: other}.get(action)
    if part in WHOLE:
        return Attack(part, action, WHOLE[part], chosen)
    places = [deployment.root, *([chosen] if chosen is not None else [])]
    found = sorted(
        {
            str(path.relative_to(place))
            for place in places
            for pattern in ALL_SINGLE[part]
            for path in place.glob(pattern)
            if path.is_file()
        }
    )
    return Attack(part, action, dice.choice(found), chosen) if found else None


def _on_staged(
    part: str, action: Action, deployment: Deployment, *, other: Path, dice: random.Random
) -> Attack | None:
    """Return the attack on a file that waits: exchanged with one of another batch, or of the other deployment."""
    found = waiting(deployment.root, STAGED[part])
    if not found:
        return None
    path = dice.choice(found)
    others = [deployment.root / name for name in found if name != path]
    others += [other / name for name in waiting(other, STAGED[part])]
    if action is Action.EXCHANGED and not others:
        action = Action.CHANGED
    return Attack(part, action, path, dice.choice(others) if action is Action.EXCHANGED else None)
