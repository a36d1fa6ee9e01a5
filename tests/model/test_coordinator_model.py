"""The coordinator against the oracle of ``world``: histories Hypothesis chooses (and shrinks), and long random ones.

A failing random history names its seed; ``MODEL_SEED=<seed>`` runs that one alone.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.model.world import World
from tests.properties import examples

SEEDS = [int(os.environ["MODEL_SEED"])] if "MODEL_SEED" in os.environ else list(range(examples(24)))
STEPS = 150


class CoordinatorModel(RuleBasedStateMachine):
    """Every rule is one step of the world."""

    @initialize()
    def begin(self) -> None:
        self.world = World()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_end()


def _add_rules() -> None:
    for step, _ in World.STEPS:

        def run(self: CoordinatorModel, seed: int, step: Any = step) -> None:
            self.world.step(step, Random(seed))

        run.__name__ = step.__name__
        setattr(CoordinatorModel, step.__name__, rule(seed=st.integers(0, 2**16))(run))


_add_rules()
TestChosenHistories = CoordinatorModel.TestCase
TestChosenHistories.settings = settings(
    max_examples=examples(40),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("seed", SEEDS)
def test_long_random_histories_keep_every_promise(seed: int) -> None:
    random = Random(seed)
    world = World()
    steps, weights = zip(*World.STEPS, strict=True)
    for _ in range(STEPS):
        world.step(random.choices(steps, weights)[0], random)
    world.check_end()
    assert world.completed, "nothing ever completed: the history says nothing"
