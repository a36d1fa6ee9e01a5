"""Changes of tables that nobody is told of before every table shows their checkpoint: readers go by that one."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from dagster_ckpt.core.checkpoint.shown import Moved
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.spark.stage_report import TableChanged


@dataclass
class HeldChanges:
    """Changes of the tables of one attempt, at most one of each table."""

    _held: dict[StageUid, TableChanged] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self, change: TableChanged) -> None:
        """Keep a change, with what is kept of its table already."""
        with self._lock:
            earlier = self._held.get(change.uid)
            adds = earlier is not None and not (change.taken_back or earlier.taken_back)
            self._held[change.uid] = change.after(earlier) if adds and earlier is not None else change

    def released(self, moved: Moved) -> list[TableChanged]:
        """Return, once, the changes that readers find now; later ones stay."""
        shown = moved.after.checkpoint_id
        with self._lock:
            told = [one for one in self._held.values() if shown is None or one.checkpoint_id <= shown]
            for change in told:
                del self._held[change.uid]
        return told


def changed_before(moved: Moved, told: Iterable[TableChanged]) -> list[StageUid]:
    """Return the tables of which an earlier attempt has changed what readers find now, and could tell nobody."""
    before = {} if moved.before is None else moved.before.tables
    known = {change.uid for change in told}
    heads = {uid: table.head for uid, table in moved.after.tables.items() if table.head and uid not in known}
    return [StageUid(uid) for uid, head in heads.items() if uid not in before or before[uid].head != head]
