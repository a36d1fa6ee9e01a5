"""What Spark says of a query that cannot go on from its checkpoint becomes one sentence with a way out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.spark.plan.errors import WAY_OUT, changed_query
from dagster_ckpt.spark.streaming.restart import FixedDelay
from dagster_ckpt.spark.streaming.run import StageDied, StreamingRun
from dagster_ckpt.spark.streaming.service import GaveUp, StreamingService

KEY = """[STREAM_FAILED] Query [id = 46dd0186, runId = 55afd422] terminated with exception: \
[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match existing state key schema.
Please check number and type of fields.
Existing key_schema=StructType(StructField(k,LongType,true)) and new \
key_schema=StructType(StructField(_group,StringType,true)).
If you want to force running the query without schema validation, please set spark.sql.x to false.
=== Streaming Query ===
"""
VALUE = KEY.replace("KEY_SCHEMA", "VALUE_SCHEMA").replace("key_schema", "value_schema")
NOW = "(OperatorId: 0 -> OperatorName: stateStoreSave), (OperatorId: 1 -> OperatorName: dedupe)"
OPERATORS = f"""[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator name does not
match. Stateful operators in the metadata: [(OperatorId: 0 -> OperatorName: stateStoreSave)]; \
Stateful operators in current batch: [{NOW}].
"""
APPEARED = """[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] Cannot restart streaming query.
Stateful operators in current batch: [(OperatorId: 0 -> OperatorName: stateStoreSave)].
"""
SOURCES = "assertion failed: There are [1] sources in the checkpoint offsets and now there are [2] sources requested."
FILES = (
    "[STREAM_FAILED] Query [id = 46dd0186] terminated with exception: Wrong basePath /two/my feed for the root path: "
    "file:/one/my feed/001.json SQLSTATE: XXKST\n=== Streaming Query ==="
)
VARIABLE = "[STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE] Cannot change total to MapState.\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (KEY, "the key of its state was (k long) and is now (_group string)"),
        (
            VALUE.replace("(StructField(_", "(StructField(s,DecimalType(20,2),false),StructField(_"),
            "the value of its state was (k long) and is now (s decimal(20,2), _group string)",
        ),
        (
            OPERATORS,
            "its stateful operators were aggregation and are now aggregation, dropDuplicates",
        ),
        (OPERATORS.replace(NOW, ""), "were aggregation and are now none"),
        (APPEARED, "it had no stateful operators and has aggregation now"),
        (
            FILES,
            "it has read file:/one/my feed/001.json, and its function reads files of /two/my feed now: a folder",
        ),
        (SOURCES, "it had 1 sources and has 2 now"),
        (VARIABLE, "Spark says STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE: Cannot change total to MapState"),
    ],
)
def test_a_changed_query_is_refused_with_what_changed_and_a_way_out(text: str, said: str) -> None:
    changed = changed_query(StageUid("totals"), RuntimeError(text))
    assert changed is not None
    assert said in str(changed)
    assert str(changed).startswith("stage 'totals' cannot go on from its state: ")
    assert str(changed).endswith(WAY_OUT)
    assert "\n" not in str(changed)


def test_a_query_that_failed_for_another_reason_is_none_of_its_business() -> None:
    assert changed_query(StageUid("totals"), RuntimeError("[DIVIDE_BY_ZERO] Division by zero.")) is None


# --- in a stream --------------------------------------------------------------------------------------------


def test_a_stream_is_not_restarted_for_a_changed_query() -> None:
    """Its restart strategy would try for minutes what no try can change."""
    uid = StageUid("totals")
    query = SimpleNamespace(uid=uid, understood=lambda error: changed_query(uid, error))
    stage: Any = SimpleNamespace(
        is_over=False,
        is_active=False,
        failure=RuntimeError(KEY),
        is_bounded=False,
        told_by=query,
        start_again=lambda *_: False,
    )
    run: Any = SimpleNamespace(stages={uid: stage}, _finished=set(), spark=None, settings=None)
    died = StreamingRun._look_at_queries(run)
    assert isinstance(died, StageDied)
    ends: list[RunStatus] = []
    service: Any = SimpleNamespace(
        strategy=FixedDelay(attempts=3),
        _attempt=lambda: died,
        _end=lambda status, **_: ends.append(status),
    )
    end = StreamingService._run(service)
    assert isinstance(end, GaveUp)
    assert end.last.message.endswith(WAY_OUT)
    assert ends == [RunStatus.FAILED]
