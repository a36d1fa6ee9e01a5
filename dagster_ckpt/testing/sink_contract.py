"""The contract of sinks: subclass it in a test, say how your sink is opened and read, and pytest runs all of it.

::

    class TestMySink(SinkContract):
        can_fork = False

        def open(self, context):
            return MySink("db://orders", context)

        def rows(self, place):
            return read_my_rows(place)  # [(k, v), ...]

        def steps(self):
            return [(mysink, "commit"), (mysink, "delete")]
"""

from __future__ import annotations

from dagster_ckpt.testing.sinks.histories import HistoryContract
from dagster_ckpt.testing.sinks.keys import ContentContract, KeyContract
from dagster_ckpt.testing.sinks.publishing import PublishContract, StagedContract
from dagster_ckpt.testing.sinks.rolling_back import RollBackContract
from dagster_ckpt.testing.sinks.together import TogetherContract


class SinkContract(
    PublishContract,
    StagedContract,
    RollBackContract,
    HistoryContract,
    ContentContract,
    KeyContract,
    TogetherContract,
):
    """Contract of sinks: ``open``, ``rows`` and ``steps`` are yours to give, class variables say what the sink can."""
