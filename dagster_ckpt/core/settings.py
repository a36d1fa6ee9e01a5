"""Settings as people write them: under Flink's keys or ours, durations with or without units."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from dagster_ckpt.core.flink_options import (
    CHECKPOINTING,
    DURATIONS,
    ELSEWHERE,
    FLINK_OPTIONS,
    FORMER,
    OF_THE_API,
    RECOVERY,
)
from dagster_ckpt.errors import InvalidRequest

log = logging.getLogger("dagster_ckpt.settings")

_BY_KEY = {option.name: option for option in FLINK_OPTIONS}


T = TypeVar("T")


def refusing_unknown(cls: type[T]) -> type[T]:
    """Let a dataclass refuse a misspelled setting with the nearest one there is, as InvalidRequest."""
    made: Any = cls.__init__

    @wraps(made)
    def init(self: T, *args: Any, **settings: Any) -> None:
        known = list(getattr(cls, "__dataclass_fields__", {}))
        unknown = [refusal(name, known) for name in settings if name not in known]
        if unknown:
            raise InvalidRequest(f"{cls.__name__}: {'; '.join(unknown)}")
        made(self, *args, **settings)

    cls.__init__ = init  # type: ignore[assignment, method-assign]
    return cls


# --- names ------------------------------------------------------------------------------------------------------


def nearest(name: str, known: Collection[str]) -> str:
    """Return the known name that ``name`` was probably meant to be; empty where none is near."""
    begins = sorted(each for each in known if each.startswith(f"{name}_"))
    # What is as near as `table` is to `state` was hardly meant.
    return next(iter([*get_close_matches(name, known, n=1, cutoff=0.65), *begins]), "")


def _spelled(name: str) -> str:
    """Return a name as a setting here is spelled: ``max-parallelism`` and ``maxParallelism`` are one."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    for folder in (CHECKPOINTING, RECOVERY, "state.backend."):
        apart = apart.removeprefix(folder)
    return re.sub(r"[.\s-]", "_", apart.strip()).lower().removeprefix("state_")


_BY_NAME = {_spelled(name): _BY_KEY[today] for name, today in (FORMER | OF_THE_API).items()}
_BY_NAME |= {_spelled(option.name): option for option in FLINK_OPTIONS}
_ELSEWHERE = {_spelled(name): why for name, why in ELSEWHERE.items()}


def _why_elsewhere(name: str) -> str:
    """Return why a word of Flink is no setting here; empty: it is none of them."""
    spelled = _spelled(name)
    return next((why for word, why in _ELSEWHERE.items() if f"{spelled}_".startswith(f"{word}_")), "")


def is_of_flink(name: str) -> bool:
    """True for an option of Flink, by its full key or as it would be spelled here."""
    return _spelled(name) in _BY_NAME or bool(_why_elsewhere(name))


def meant_by(name: str) -> str:
    """Return the setting here that an option of Flink is, however it is spelled; empty: it is none."""
    option = _BY_NAME.get(_spelled(name))
    return option.here or "" if option is not None else ""


def key_of_today(name: str) -> str:
    """Return the key that Flink has put in the place of another one; any other name is returned as it is."""
    return FORMER.get(name, name)


def refusal(name: str, known: Collection[str]) -> str:
    """Return the sentence about a setting that is not among ``known``: the nearest one, or why there is none."""
    if why := _why_elsewhere(name):
        return f"`{name}` is not supported: {why}"
    option = _BY_NAME.get(_spelled(name))
    if option is not None and option.here is None:
        return f"`{name}` is not supported: {option.note}"
    if option is not None and option.here in known:
        return f"`{name}`: did you mean `{option.here}`?"
    near = nearest(name, known)
    if near:
        return f"`{name}`: did you mean `{near}`?"
    return f"`{name}` is none of the settings here: {', '.join(sorted(known))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSettings:
    """Settings by our names, and how each was written."""

    values: dict[str, Any] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> NamedSettings:
        """Translate Flink's keys. Raises InvalidRequest for a setting that is given twice and differently."""
        values: dict[str, Any] = {}
        written: dict[str, str] = {}
        for key, value in settings.items():
            name = our_name(key)
            if key in FORMER:
                log.warning("deprecated key '%s' of Flink: its key is '%s' now", key, FORMER[key])
            if name in values and values[name] != value:
                raise InvalidRequest(
                    f"`{name}` is given twice: as `{written[name]}` = {values[name]!r} and as `{key}` = {value!r}"
                )
            values[name], written[name] = value, key
        return cls(values=values, written=written)

    def under(self, later: NamedSettings) -> NamedSettings:
        """Return both; where both have a setting, the ``later`` one counts."""
        return NamedSettings(
            values={**self.values, **later.values}, written={**self.written, **later.written}
        )


def our_name(key: str) -> str:
    """Return the setting that a full key of Flink means; any other name is returned as it is."""
    option = _BY_KEY.get(key_of_today(key))
    return key if option is None or option.here is None else option.here


# --- values -----------------------------------------------------------------------------------------------------

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*", re.IGNORECASE)
_SECONDS = {
    unit: seconds
    for seconds, units in (
        (1e-9, "ns nano nanos nanosecond nanoseconds"),
        (1e-6, "us µs micro micros microsecond microseconds"),
        (1e-3, "ms milli millis millisecond milliseconds"),
        (1.0, "s sec secs second seconds"),
        (60.0, "m min mins minute minutes"),
        (3600.0, "h hour hours"),
        (86400.0, "d day days"),
    )
    for unit in units.split()
}


def seconds_of(value: Any) -> Any:
    """Return a duration with a unit (``10 min``, ``500ms``) in seconds; what has none as it is."""
    if not isinstance(value, str) or _is_number(value):
        return value
    found = _QUANTITY.fullmatch(value)
    if found is None or found[2].lower() not in _SECONDS:
        raise ValueError("should be a duration: give seconds, or a number with ms, s, min, h or d (10 min)")
    return float(found[1]) * _SECONDS[found[2].lower()]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def word_of(value: Any) -> Any:
    """Return the name of a choice as ours are spelled: ``EXACTLY_ONCE`` is ``exactly_once``."""
    return value.strip().lower().replace("-", "_") if isinstance(value, str) else value


def refuse_without_unit(settings: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a duration without unit under a key of Flink, who takes it for milliseconds."""
    for key, value in settings.items():
        bare = isinstance(value, int | float) or (isinstance(value, str) and _is_number(value))
        if key_of_today(key) in _BY_KEY and our_name(key) in DURATIONS and bare and float(value):
            raise InvalidRequest(
                f"`{key}` = {value!r} has no unit, and Flink would take it for milliseconds: write `{value} ms` or "
                f"`{value} s`"
            )
