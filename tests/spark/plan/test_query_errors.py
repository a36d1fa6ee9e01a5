"""What ends a query, as Spark tells it through its proxies, becomes one sentence that begins with the user's line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dagster_ckpt import InvalidRequest, spark_sink, spark_stage
from dagster_ckpt.errors import CheckpointError, Unavailable
from dagster_ckpt.spark.plan.errors import StageFailed, end_of_program, row_error, understood
from dagster_ckpt.spark.session import without_java
from tests.root import ROOT

STAGE = spark_stage(uid="clean")(lambda rows: rows)
FLOW = replace(STAGE, no_aggregation="flow 'clean' (main.py:7) aggregates: make it a materialized view")
SINK = spark_sink(uid="sent")(lambda rows: rows)

PROXY = f"""[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] \
An error occurred in the user provided function in foreach batch sink. Reason: An exception was raised by the Python \
Proxy. Return Message: Traceback (most recent call last):
  File "{ROOT}/dagster_ckpt/spark/channel/sink.py", line 82, in write_staged
    .parquet(str(folder))
"""
END = """ SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: shop.clean [id = 1]
Traceback (most recent call last):
Logical Plan:
"""
WORKER = """pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/home/ann/shop/rates.py", line 7, in rate
    return rates[currency]
           ~~~~~^^^^^^^^^^
KeyError: 'EUR'
"""
CAST = """pyspark.errors.exceptions.captured.NumberFormatException: [CAST_INVALID_INPUT] The value 'ann' of the type \
"STRING" cannot be cast to "INT" because it is malformed. SQLSTATE: 22018
== SQL (line 1, position 1) ==
"""
OURS = "dagster_ckpt.errors.InvalidRequest: table t: the rows have no key column 'custmer': name columns of ['a']\n"
AGGREGATION = (
    "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: append. This output mode is not "
    "supported for streaming aggregations without watermark on streaming DataFrames/DataSets. SQLSTATE: 42KDE"
)
GOES_ON = "; once that is mended, the next run goes on from the latest checkpoint"
CHANGING = "aggregates, and its rows change with every batch, which appending cannot show: "
KEYED = "add key=[...] to the sink, the columns it is grouped by, and the table holds one row per key"
WATERMARK = "; or add a watermark (withWatermark) to its input, and rows come once their window is closed"


FULL = """py4j.protocol.Py4JJavaError: An error occurred while calling o7.parquet.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.Thing.run(Thing.scala:1)
Caused by: java.io.IOException: Mkdirs failed to create file:/t/batch-1 (exists=false, cwd=file:/)
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:4)
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback
"""
WRITE = """[TASK_WRITE_FAILED] Task failed while writing rows to file:/t/batch-1. SQLSTATE: 58030
Caused by: java.io.IOException: No space left on device
"""
ROOM = "; make room on its disk, or give access to it"


@pytest.mark.parametrize(
    ("stage", "text", "kind", "said"),
    [
        (
            STAGE,
            PROXY + FULL + END,
            StageFailed,
            "stage clean: IOException: Mkdirs failed to create file:/t/batch-1 (exists=false, cwd=file:/)"
            + ROOM
            + GOES_ON,
        ),
        (
            STAGE,
            PROXY.partition("[FOREACH")[0] + "Writing job aborted. SQLSTATE: XXKST\n" + END,
            StageFailed,
            "stage clean: Writing job aborted" + GOES_ON,
        ),
        (
            STAGE,
            PROXY + WRITE + END,
            StageFailed,
            "stage clean: Task failed while writing rows to file:/t/batch-1: IOException: No space left on device"
            + ROOM
            + GOES_ON,
        ),
        (
            STAGE,
            PROXY + WORKER + END,
            StageFailed,
            "/home/ann/shop/rates.py:7 in rate, `return rates[currency]`: KeyError: 'EUR' (stage clean)"
            + GOES_ON,
        ),
        (
            STAGE,
            PROXY + CAST + END,
            StageFailed,
            'stage clean: The value \'ann\' of the type "STRING" cannot be cast to "INT" because it is malformed'
            + GOES_ON,
        ),
        (
            SINK,
            PROXY + OURS + END,
            InvalidRequest,
            "stage sent: table t: the rows have no key column 'custmer': name columns of ['a']",
        ),
        (
            SINK,
            AGGREGATION,
            InvalidRequest,
            f"stage sent {CHANGING}{KEYED}{WATERMARK}",
        ),
        (
            STAGE,
            AGGREGATION,
            InvalidRequest,
            f'stage clean {CHANGING}add output_mode="update" to the stage, and readers get each changed row{WATERMARK}',
        ),
        (
            FLOW,
            AGGREGATION,
            InvalidRequest,
            FLOW.no_aggregation,
        ),
    ],
)
def test_an_error_of_a_query_is_one_sentence(
    stage: Any, text: str, kind: type[CheckpointError], said: str
) -> None:
    told = understood(stage, RuntimeError(text))
    assert type(told) is kind
    assert str(told) == said


MALFORMED = 'The value \'ann\' of the type "STRING" cannot be cast to "INT" because it is malformed'
IN_PROGRAM = "=== Streaming Query ===\nIdentifier: totals [id = 7, runId = 8]\n"


def calls_program(error: Exception) -> None:
    _program(error)


def _program(error: Exception) -> None:
    raise error


LINE = _program.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            RuntimeError(PROXY + WORKER + IN_PROGRAM),
            StageFailed,
            "/home/ann/shop/rates.py:7 in rate, `return rates[currency]`: KeyError: 'EUR' (query totals)",
        ),
        (
            RuntimeError(PROXY + CAST + IN_PROGRAM),
            StageFailed,
            f"{__file__}:{LINE} in _program, `raise error`: {MALFORMED} (query totals)",
        ),
        (
            ValueError("no such topic\nof many"),
            StageFailed,
            f"{__file__}:{LINE} in _program, `raise error`: ValueError: no such topic",
        ),
        (InvalidRequest("as it is"), InvalidRequest, "as it is"),
    ],
)
def test_the_end_of_a_program_is_one_sentence(
    error: Exception, kind: type[CheckpointError], said: str
) -> None:
    with pytest.raises(type(error)) as raised:
        calls_program(error)
    told = end_of_program(raised.value, called="calls_program")
    assert type(told) is kind
    assert str(told) == said


LIBRARY = """Py4JJavaError: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "pyarrow/error.pxi", line 92, in pyarrow.lib.check_status
pyarrow.lib.ArrowInvalid: Could not convert <object> with type object
"""
WRITTEN = """Py4JJavaError: SparkException: [TASK_WRITE_FAILED] Task failed while writing rows. SQLSTATE: 58030
Caused by: SparkArithmeticException: [ARITHMETIC_OVERFLOW] overflow. Use 'try_multiply'. SQLSTATE: 22003
== SQL (line 1, position 1) ==
"""


@pytest.mark.parametrize(
    ("error", "name", "said"),
    [
        (
            WORKER,
            "KeyError",
            "/home/ann/shop/rates.py:7 in rate, `return rates[currency]`: KeyError: 'EUR'",
        ),
        (
            LIBRARY,
            "pyarrow.lib.ArrowInvalid",
            "pyarrow.lib.ArrowInvalid: Could not convert <object> with type object",
        ),
        (WRITTEN, "ARITHMETIC_OVERFLOW", "overflow. Use 'try_multiply'."),
        (
            "[MALFORMED_RECORD_IN_PARSING] bad. Parse Mode:\nSQLSTATE: 22023",
            "MALFORMED_RECORD_IN_PARSING",
            "bad. Parse Mode:",
        ),
        (
            (
                "[MALFORMED_RECORD_IN_PARSING] Malformed records are detected in record parsing: [1]. SQLSTATE: 22023\n"
                "Caused by: [MALFORMED_CSV_RECORD] Malformed CSV record: 1,x SQLSTATE: KD000"
            ),
            "MALFORMED_RECORD_IN_PARSING",
            "Malformed records are detected in record parsing: [1].",
        ),
        (
            (
                "SparkException: Malformed records are detected in record parsing. Current parse Mode: FAILFAST.\n"
                "Caused by: java.io.EOFException"
            ),  # of Avro
            "MALFORMED_RECORD_IN_PARSING",
            "Malformed records are detected in record parsing. Current parse Mode: FAILFAST.",
        ),
        ("[USER_RAISED_EXCEPTION] no such unit SQLSTATE: P0001", "USER_RAISED_EXCEPTION", "no such unit"),
        ("[UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 64 bytes of memory. SQLSTATE: 53200", None, ""),
        ("[FAILED_READ_FILE.NO_HINT] Encountered error while reading file. SQLSTATE: KD001", None, ""),
        (PROXY + OURS, None, ""),
        (PROXY + WORKER + "Python worker failed to connect back", None, ""),
        (InvalidRequest("[ARITHMETIC_OVERFLOW] overflow SQLSTATE: 22003"), None, ""),
        (RuntimeError("Job 7 cancelled part of cancelled job group"), None, ""),
    ],
)
def test_an_error_that_a_row_may_be_the_reason_of_is_told_from_all_others(
    error: str | Exception, name: str | None, said: str
) -> None:
    told = row_error(RuntimeError(error) if isinstance(error, str) else error)
    assert (told and told.name, told.said if told else "") == (name, said)


def test_an_error_that_says_it_best_itself_or_passes_by_itself_is_left_alone() -> None:
    assert understood(STAGE, NameError("name 'x' is not defined")) is None
    assert understood(STAGE, RuntimeError(PROXY + "Python worker failed to connect back")) is None
    assert understood(STAGE, InvalidRequest("our own")) is None


def test_a_jvm_that_has_ended_is_told_and_no_unreachable_database() -> None:
    from py4j.protocol import Py4JError, Py4JNetworkError

    connects = compile("raise ConnectionRefusedError(111, 'refused')", "lib/py4j/clientserver.py", "exec")
    with pytest.raises(ConnectionRefusedError) as refused:
        exec(connects)
    masked = RuntimeError("a session could not be set back")
    masked.__context__ = Py4JNetworkError("Answer from Java side is empty")
    for error in (refused.value, masked, Py4JError("An error occurred while calling o58.parquet")):
        told = understood(STAGE, error)
        assert isinstance(told, Unavailable)
        assert str(told).startswith("stage clean: the JVM of the Spark session has ended")
    for other in (
        ConnectionRefusedError(111, "Connection refused"),
        Py4JError("Method x([]) does not exist"),
    ):
        assert understood(STAGE, other) is None


def test_a_machine_without_java_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    told = without_java(
        RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
    )
    assert str(told) == (
        "Java did not start, looked for on the PATH (JAVA_HOME is not set): Spark needs Java 17 or newer. Install one "
        "(Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME to its folder; or mend what it said above "
        "before it ended, such as a package of spark.jars.packages that is not found"
    )
    assert without_java(RuntimeError("[OTHER]")) is None
