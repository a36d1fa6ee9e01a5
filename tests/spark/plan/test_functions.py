"""Digests of stage functions: every default value and argument counts, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dagster_ckpt.spark.plan.functions import digest_of

MANY = 12


def defaults(changed: int) -> Callable[..., Any]:
    """Return a function that calls many, one of which has another default value."""
    names: dict[str, Any] = {"__name__": "shop"}
    helpers = [f"def helper_{i}(x, n={9 if i == changed else 1}): return x * n" for i in range(MANY)]
    calls = "+".join(f"helper_{i}(x)" for i in range(MANY))
    exec("\n".join([*helpers, f"def stage(x): return {calls}"]), names)  # what a file is
    found: Callable[..., Any] = names["stage"]
    return found


def arguments(changed: int) -> Callable[..., Any]:
    """Return a function that closes over many partial ones, one of which has another argument."""
    given = [partial(max, i, 9 if i == changed else 1) for i in range(MANY)]
    return lambda x: given


@pytest.mark.parametrize("of", [defaults, arguments])
def test_a_digest_tells_which_of_many_values_is_another_one(of: Callable[[int], Callable[..., Any]]) -> None:
    """A list that was made on the way lent its id to the next one, whose values passed for seen."""
    assert len({digest_of(of(changed)) for changed in range(MANY)}) == MANY
    assert digest_of(of(0)) == digest_of(of(0))
