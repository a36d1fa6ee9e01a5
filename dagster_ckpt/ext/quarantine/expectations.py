"""Expectations of a stage, ``expect={"amount > 0": "quarantine"}``, and ``on_error``: what is asked of its rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from dagster_ckpt.authoring.stage_settings import StageParticipant
from dagster_ckpt.core.checkpoint.tables import LATE
from dagster_ckpt.core.ids import stage_uid
from dagster_ckpt.errors import InvalidRequest

MOST_CONDITIONS = 61
"""A verdict is a number of Spark's, a bit for each condition and for those of ``on_error``."""
PROCESSED, HELD = "can be processed", "tables can hold it"
"""Conditions of ``on_error``, as counts and the quarantine name them."""
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


class Action(StrEnum):
    """Treatment of a row that breaks a condition."""

    WARN = "warn"
    """It is counted, and goes on."""
    DROP = "drop"
    """It is counted, and goes no further."""
    QUARANTINE = "quarantine"
    """It goes to the stage's quarantine."""
    FAIL = "fail"
    """The run fails, and nothing of the batch is kept."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition in SQL on a row's columns; NULL is no: a row must meet it."""

    sql: str
    action: Action


@dataclass(frozen=True, kw_only=True)
class Expectations(StageParticipant):
    """The conditions of one stage."""

    opened_by: ClassVar[str] = "dagster_ckpt.ext.quarantine.judged_rows:JudgedRows"

    uid: str
    conditions: tuple[Condition, ...]
    at_most: str = ""
    """Rows of one checkpoint that may break each, ``1 %`` or a number; empty: any."""
    fails: bool = False
    """A checkpoint with more of them fails; else its check is red."""
    keeps_late: bool = False
    """Rows that a watermark drops are quarantined; else they are only counted."""
    keeps_errors: bool = False
    """Rows that cannot be processed, or that no table can hold, go to the quarantine."""
    named: str = ""
    """Name of the quarantine; empty: the stage's first uid."""
    first_uid: str = ""
    """Under which a renamed stage began; empty: it has its first one."""
    days: int = 0
    """Days that rows stay in the quarantine; 0: for ever."""

    @property
    def judges(self) -> tuple[str, ...]:
        """The conditions."""
        errors, late = (PROCESSED, HELD) if self.keeps_errors else (), (LATE,) if self.keeps_late else ()
        return (*(one.sql for one in self.conditions), *errors, *late)

    @property
    def limit(self) -> str:
        """Rows of one checkpoint that may break each."""
        return self.at_most

    @property
    def table(self) -> str:
        """Table of the quarantine; empty: no condition quarantines."""
        is_needed = any(one.action is Action.QUARANTINE for one in self.conditions)
        is_needed = is_needed or self.keeps_late or self.keeps_errors
        return f"quarantine/{self.named or self.first_uid or self.uid}" if is_needed else ""

    @property
    def key(self) -> tuple[str, ...]:
        """A row that was judged again takes its own place."""
        return ("id",) if self.table else ()

    def of_stage(self, uid: str, former: Sequence[str]) -> Expectations:
        """Return the same expectations of another stage, whose quarantine is its own unless it has a name."""
        return replace(self, uid=uid, first_uid=former[-1] if former else "")

    @property
    def rereads(self) -> bool:
        """Late rows, and those that cannot be processed, are gone from what the stage returns."""
        return self.keeps_late or self.keeps_errors


def expectations_of(
    fn: Callable[..., Any], uid: str, output_mode: str, settings: Mapping[str, Any]
) -> Expectations:
    """Return the expectations of a stage's settings. Raises InvalidRequest for impossible ones."""
    name = repr(fn.__name__)
    keeps_late, keeps_errors = _late(name, settings), _keeps_errors(name, settings)
    expect = settings.get("expect", {} if keeps_late or keeps_errors else None)
    if not isinstance(expect, Mapping) or not (expect or keeps_late or keeps_errors):
        raise InvalidRequest(
            f"{name} has expect={expect!r}: give conditions in SQL with what becomes of a row that breaks one, "
            'expect={"amount > 0": "quarantine"}'
        )
    if len(expect) > MOST_CONDITIONS:
        raise InvalidRequest(
            f"{name} has {len(expect)} conditions: give at most {MOST_CONDITIONS}, join some by AND"
        )
    if output_mode == "complete":
        raise InvalidRequest(
            f"{name} has expect and output_mode='complete', where all rows come with every batch: put the "
            "conditions on the stage before it"
        )
    made = Expectations(
        uid=uid,
        conditions=tuple(_condition(name, sql, action) for sql, action in expect.items()),
        at_most=_at_most(name, settings.get("at_most")),
        fails=_fails(name, settings),
        keeps_late=keeps_late,
        keeps_errors=keeps_errors,
        named=_named(name, settings),
        days=settings.get("quarantine_days", 0),
    )
    if not made.table:
        for setting in ("quarantine", "quarantine_days"):
            if settings.get(setting):
                raise InvalidRequest(
                    f"{name} has {setting}={settings[setting]!r}, and nothing that sends a row there"
                )
    return made


def _named(name: str, settings: Mapping[str, Any]) -> str:
    named = settings.get("quarantine", "")
    try:
        return stage_uid(named) if named else ""
    except (InvalidRequest, TypeError):
        raise InvalidRequest(f"{name} has quarantine={named!r}: give a name as a stage has one") from None


def _late(name: str, settings: Mapping[str, Any]) -> bool:
    late = settings.get("late", "count")
    if late not in ("count", "keep"):
        raise InvalidRequest(f"{name} has late={late!r}: give count or keep")
    return bool(late == "keep")


def _keeps_errors(name: str, settings: Mapping[str, Any]) -> bool:
    on_error = settings.get("on_error", "fail")
    if on_error not in ("fail", "quarantine"):
        raise InvalidRequest(f"{name} has on_error={on_error!r}: give fail or quarantine")
    return bool(on_error == "quarantine")


def _condition(name: str, sql: Any, action: Any) -> Condition:
    if not isinstance(sql, str) or not sql.strip():
        raise InvalidRequest(f"{name} expects {sql!r}: give a condition in SQL, such as 'amount > 0'")
    if sql.strip() == LATE:
        raise InvalidRequest(f"{name} expects {sql!r}, as late rows are called: write '({LATE})'")
    if action not in [*Action]:
        raise InvalidRequest(
            f"{name} has {action!r} for the condition {sql!r}: give {', '.join([*Action][:-1])} or {Action.FAIL}"
        )
    return Condition(sql.strip(), Action(action))


def _at_most(name: str, given: Any) -> str:
    if given is None:
        return ""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return str(given)
    share = _SHARE.fullmatch(given.strip()) if isinstance(given, str) else None
    if share is None or float(share[1]) > 100:
        raise InvalidRequest(
            f"{name} has at_most={given!r}: give a number of rows, 100, or a share of them, '1 %'"
        )
    return f"{share[1]} %"


def _fails(name: str, settings: Mapping[str, Any]) -> bool:
    beyond = settings.get("beyond", "warn")
    if beyond not in ("warn", "fail"):
        raise InvalidRequest(f"{name} has beyond={beyond!r}: give warn or fail")
    if "beyond" in settings and settings.get("at_most") is None:
        raise InvalidRequest(
            f"{name} has beyond={beyond!r} and no at_most: say beyond how many rows, at_most='1 %'"
        )
    return bool(beyond == "fail")
