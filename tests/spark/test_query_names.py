"""Names of queries: one is free for every attempt, also while a query of the attempt before is still ending."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from dagster_ckpt.spark.session import NAMES_TRIED, start_under_free_name


class Session:
    """Starts queries as Spark does: a name of an active query is refused, whether it was listed or not."""

    def __init__(self, listed: Iterator[set[str | None]], active: set[str]) -> None:
        self._listed = listed
        self._active = active
        self.tried: list[str] = []

    def start(self, name: str) -> Any:
        self.tried.append(name)
        if name in self._active:
            raise ValueError(
                f"Cannot start query with name {name} as a query with that name is already active in this SparkSession"
            )
        return name

    def started(self) -> str:
        return cast(str, start_under_free_name(self.start, "shop.lines", lambda: next(self._listed)))


def always(*names: str | None) -> Iterator[set[str | None]]:
    while True:
        yield set(names)


def test_a_query_has_its_stages_name_where_nobody_else_has() -> None:
    assert Session(always(None, "shop.totals"), set()).started() == "shop.lines"


def test_a_query_of_an_attempt_that_is_over_keeps_its_name() -> None:
    assert Session(always("shop.lines", "shop.lines.2"), set()).started() == "shop.lines.3"


def test_a_name_that_spark_refuses_though_it_listed_no_such_query_is_not_the_end_of_the_run() -> None:
    session = Session(always(), {"shop.lines", "shop.lines.2"})
    assert session.started() == "shop.lines.3"
    assert session.tried == ["shop.lines", "shop.lines.2", "shop.lines.3"]


def test_another_refusal_is_the_stages_own() -> None:
    def start(_name: str) -> Any:
        raise ValueError("Cannot start query with id 7 as another query with same id is already active")

    with pytest.raises(ValueError, match="with id 7"):
        start_under_free_name(start, "shop.lines", set)


def test_a_session_that_refuses_every_name_is_given_up() -> None:
    session = Session(always(), {"shop.lines", *(f"shop.lines.{n}" for n in range(2, 100))})
    with pytest.raises(ValueError, match="already active"):
        session.started()
    assert len(session.tried) == NAMES_TRIED
