"""What tests need beside Python: a fixture says it where it is defined, and who asks for it gets the marker.

``make quick`` runs what needs nothing and is not marked ``slow`` (``-m quick``), and ``scripts/needs.py`` tells
``scripts/bootstrap`` what selected tests need. Tests whose children start a JVM are marked by hand: ``make quick`` has
no Java, and fails on one that was forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., Any])

NEEDS = {
    "spark": ("java", "class_archive", "plain_files"),
    "postgres": ("postgres",),
    "kafka": ("java", "kafka", "spark_kafka"),
    "s3": (),
    "browser": ("chromium",),
}
"""Marker, and what ``scripts/bootstrap`` installs for it."""
BOTH = {("spark", "s3"): ("spark_s3",)}
"""What is installed where tests of both markers were selected."""
NOT_QUICK = frozenset({*NEEDS, "platform", "nightly", "slow"})


def needs(*markers: str) -> Callable[[F], F]:
    """Note on a fixture, below ``@pytest.fixture``, what it starts."""
    assert set(markers) <= set(NEEDS), markers

    def note(fixture: F) -> F:
        fixture.needs = markers  # type: ignore[attr-defined]
        return fixture

    return note


def mark_needs(items: Iterable[pytest.Item]) -> None:
    """Give each test the markers of its fixtures; one that needs nothing is ``quick``."""
    for item in items:
        found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
        for marker in sorted({need for definitions in found.values() for need in _noted(definitions[-1])}):
            item.add_marker(marker)
        if NOT_QUICK.isdisjoint(mark.name for mark in item.iter_markers()):
            item.add_marker("quick")


def refuse_unmarked(definition: pytest.FixtureDef[Any], item: pytest.Item) -> None:
    """Fail a test that comes to a fixture by name alone, so that no marker told of it."""
    missing = [need for need in _noted(definition) if item.get_closest_marker(need) is None]
    if missing:
        pytest.fail(f"{item.nodeid} starts {definition.argname}: mark what asks for it with {missing}")


def to_install(markers: Iterable[str]) -> list[str]:
    """Return what ``scripts/bootstrap`` installs for tests of these markers, each once, in its order."""
    given = set(markers)
    wanted = [NEEDS[marker] for marker in NEEDS if marker in given]
    wanted += [words for pair, words in BOTH.items() if given.issuperset(pair)]
    return list(dict.fromkeys(word for words in wanted for word in words))


def _noted(definition: pytest.FixtureDef[Any]) -> tuple[str, ...]:
    return getattr(definition.func, "needs", ())
