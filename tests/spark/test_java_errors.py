"""An error of Spark's is readable when the connection to Java is gone."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dagster_ckpt.spark.java.process import JavaErrors


class OfJava(Exception):
    """Says what it is as long as there is a JVM, as PySpark's errors do."""

    has_jvm = True

    def __str__(self) -> str:
        assert OfJava.has_jvm
        return "the file is damaged"


@pytest.fixture(autouse=True)
def jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OfJava, "has_jvm", True)


@contextmanager
def session(*, ends: bool) -> Iterator[None]:
    try:
        yield
    finally:
        OfJava.has_jvm = not ends


def run(*, jvm_ends: bool, cause: bool) -> str:
    errors = JavaErrors()
    try:
        with errors.noted(), session(ends=jvm_ends), errors.kept():
            if cause:
                raise ValueError from OfJava()
            raise OfJava
    except (ValueError, OfJava) as error:
        return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("cause", [False, True])
@pytest.mark.parametrize("jvm_ends", [False, True])
def test_what_it_says_is_printed_once_also_after_the_session(jvm_ends: bool, cause: bool) -> None:
    assert run(jvm_ends=jvm_ends, cause=cause).count("the file is damaged") == 1


def test_one_that_cannot_say_it_at_once_hides_no_other() -> None:
    OfJava.has_jvm = False
    errors = JavaErrors()
    with pytest.raises(OfJava), errors.noted(), errors.kept():
        raise OfJava
