"""Orders, messages and verdicts of launched programs, without one."""

from __future__ import annotations

import copy
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    InvalidRequest,
    Launch,
    PipelineOptions,
    pipes,
    run_launched,
)
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.dagster.launched.messages import Ended, Heard, Order, RemoteOp, RunKind
from dagster_ckpt.dagster.launched.run import hearing, why_not
from dagster_ckpt.dagster.reports.op_log import AssetEvent
from dagster_ckpt.dagster.reports.tables import result_of
from dagster_ckpt.errors import NotFound
from dagster_ckpt.programs import StreamEnd
from tests.spark.epoch.small_pipeline import shop

CHECKPOINTS = dg.AssetKey(["shop", "checkpoints"])


class Noted:
    """An op that notes what it is told."""

    location = "here"

    def __init__(self) -> None:
        self.told: list[Any] = []

    def info(self, message: str) -> None:
        self.told.append(("info", message))

    def warn(self, message: str) -> None:
        self.told.append(("warning", message))

    def event(self, event: AssetEvent) -> None:
        self.told.append(event)

    def add_partition(self, definition: str, key: str) -> None:
        self.told.append(("+", definition, key))

    def remove_partition(self, definition: str, key: str) -> None:
        self.told.append(("-", definition, key))


@pytest.fixture
def op() -> Noted:
    return Noted()


@pytest.fixture
def sent() -> list[Any]:
    return []


@pytest.fixture
def remote(sent: list[Any]) -> RemoteOp:
    return RemoteOp(sent.append, location="here")


def told_all(remote: RemoteOp) -> list[AssetEvent]:
    events: list[AssetEvent] = [
        dg.AssetMaterialization(
            CHECKPOINTS,
            partition="chk-000001",
            description="completed",
            metadata={
                "link": dg.MetadataValue.md("[Restore]"),
                "bytes": 5,
                "plot": dg.MetadataValue.float(0.5),
            },
            tags={"a": "b"},
        ),
        dg.AssetObservation(CHECKPOINTS, description="streaming"),
        dg.AssetCheckEvaluation(
            asset_key=CHECKPOINTS,
            check_name="checkpoint_succeeded",
            passed=False,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"reason": "CHECKPOINT_EXPIRED"},
        ),
    ]
    remote.info("one")
    remote.warn("two")
    for event in events:
        remote.event(event)
    remote.add_partition("shop/checkpoints", "chk-000001")
    remote.remove_partition("shop/checkpoints", "chk-000000")
    return events


def test_what_a_program_tells_arrives_as_it_was(remote: RemoteOp, sent: list[Any], op: Noted) -> None:
    events = told_all(remote)
    heard = Heard(op=op)
    heard.hear_all(sent)
    assert op.told == [
        ("info", "one"),
        ("warning", "two"),
        *events,
        ("+", "shop/checkpoints", "chk-000001"),
        ("-", "shop/checkpoints", "chk-000000"),
    ]
    assert (heard.lost, heard.told) == (0, {"chk-000001"})


def test_a_message_that_comes_twice_acts_once_and_those_between_are_known_to_be_lost(
    remote: RemoteOp, sent: list[Any], op: Noted
) -> None:
    told_all(remote)
    heard = Heard(op=op)
    heard.hear_all([sent[0], sent[0], sent[4], sent[4], sent[6]])
    assert len(op.told) == 3
    assert heard.lost == 4
    heard.hear_all(sent)
    assert len(op.told) == 7
    assert heard.lost == 0


def test_a_program_that_tries_again_is_heard_again(op: Noted) -> None:
    heard = Heard(op=op)
    for text in ("first try", "second try"):
        RemoteOp(heard.hear).info(text)
    assert op.told == [("info", "first try"), ("info", "second try")]
    RemoteOp(heard.hear).failed(OSError("away"))
    assert heard.failed is not None
    RemoteOp(heard.hear).ended(Ended(epoch=2, lineage="l"))
    assert heard.failed is None
    assert heard.ended == Ended(epoch=2, lineage="l")


LINES, TOTALS = dg.AssetKey(["shop", "lines"]), dg.AssetKey(["shop", "totals"])


def results_of(op: Noted, *said: list[Any]) -> tuple[Heard, list[dg.AssetKey]]:
    """Return what is heard of programs, a list of messages each, and the assets that are materialized."""
    heard = Heard(op=op, hold=frozenset({LINES, TOTALS}))
    for payloads in said:
        heard.hear_all(payloads)
    return heard, [event.asset_key for event in heard.results]


def program_that_changes(*tables: dg.AssetKey, end: Ended | None = None) -> list[Any]:
    sent: list[Any] = []
    remote = RemoteOp(sent.append)
    remote.info("begins")
    for key in tables:
        remote.event(dg.AssetMaterialization(key))
    if end is not None:
        remote.ended(end)
    return sent


def test_a_table_whose_message_may_be_lost_is_materialized(op: Noted) -> None:
    end = Ended(epoch=3, lineage="l")
    whole = program_that_changes(LINES, end=end)
    assert results_of(op, whole)[1] == [LINES], "totals has no new rows"
    for cut in (whole[:-1], [*whole[:1], *whole[2:]], whole[:1], []):
        heard, keys = results_of(op, cut)
        assert not heard.is_whole
        assert sorted(keys) == [LINES, TOTALS]
        untold = [event for event in heard.results if event.asset_key == TOTALS]
        assert [result_of(event).asset_key for event in untold] == [TOTALS]
    skipped = program_that_changes(end=Ended(skipped="another one is alive"))
    assert results_of(op, skipped[1:])[1] == []


def test_what_a_try_that_was_killed_changed_is_materialized_by_the_next_try(op: Noted) -> None:
    again = program_that_changes(end=Ended(epoch=4, lineage="l"))
    assert sorted(results_of(op, program_that_changes(LINES), again)[1]) == [LINES, TOTALS]
    failed: list[Any] = []
    remote = RemoteOp(failed.append)
    remote.event(dg.AssetMaterialization(LINES))
    remote.failed(OSError("away"))
    heard, keys = results_of(op, failed, again)
    assert (heard.is_whole, keys) == (True, [LINES]), "a try that failed has said everything"


@pytest.mark.parametrize(
    "bad",
    [
        {"what": "line"},
        {"what": "event", "event": "no json"},
        {"what": "event", "event": '{"__class__": "AssetKey", "path": ["a"]}'},
        {"what": "of a later version"},
        {},
    ],
)
def test_a_bad_message_does_not_end_the_reading(op: Noted, bad: dict[str, Any]) -> None:
    heard = Heard(op=op)
    assert heard.hear({"dagster_ckpt": 1, **bad})
    assert heard.hear({"dagster_ckpt": 2, "what": "line", "level": "info", "text": "next"})
    assert op.told == [("info", "next")]


def test_messages_of_the_program_itself_are_left_to_pipes(op: Noted) -> None:
    heard = Heard(op=op)
    assert not any(heard.hear(payload) for payload in ({"mine": 1}, "text", None, {"dagster_ckpt": "x"}))


def test_a_program_that_cannot_send_goes_on(op: Noted) -> None:
    def broken(_: object) -> None:
        raise OSError("no space left")

    RemoteOp(broken).info("something")


def test_a_failure_says_whether_another_try_would_fail_too(
    remote: RemoteOp, sent: list[Any], op: Noted
) -> None:
    for error, text, is_final in (
        (NotFound("there is no savepoint-9"), "there is no savepoint-9", True),
        (ValueError("other"), "ValueError: other", False),
    ):
        remote.failed(error)
        heard = Heard(op=op)
        heard.hear(sent[-1])
        assert heard.failed is not None
        assert (heard.failed.message, heard.failed.is_final) == (text, is_final)


# --- hearing ------------------------------------------------------------------------------------------------------

PROGRAM = """
from dagster_pipes import open_dagster_pipes
with open_dagster_pipes() as pipes:
    pipes.report_custom_message({"dagster_ckpt": 1, "what": "line", "level": "info", "text": str(pipes.extras)})
    pipes.report_custom_message({"mine": 1})
    pipes.log.info("a line of the program")
"""


def test_a_client_hears_ours_as_they_come_and_keeps_the_programs_own_messages(op: Noted) -> None:
    given = dg.PipesSubprocessClient()
    before = copy.copy(vars(given))
    heard = Heard(op=op)
    kept: list[Any] = []

    @dg.op
    def launches(context) -> None:  # type: ignore[no-untyped-def]
        client = hearing(given, heard.hear)
        assert isinstance(client, dg.PipesSubprocessClient)
        # clients ask their reader what it is
        assert isinstance(client.message_reader, dg.PipesTempFileMessageReader)
        done = client.run(context=context, extras={"a": 1}, command=[sys.executable, "-c", PROGRAM])
        kept.extend(done.get_custom_messages())

    @dg.job
    def job() -> None:
        launches()

    result = job.execute_in_process()
    assert result.success
    assert op.told == [("info", "{'a': 1}")]
    assert kept == [{"mine": 1}]
    assert vars(given) == before


def test_a_client_that_makes_its_reader_when_it_runs_is_taken_as_it_is() -> None:
    class Late(dg.PipesClient):
        def run(self, *, context, extras=None, **_):  # type: ignore[no-untyped-def]
            raise NotImplementedError

    late = Late()
    assert hearing(late, lambda _: True) is late


# --- orders and verdicts ------------------------------------------------------------------------------------------


def order(**more: Any) -> Order:
    given: dict[str, Any] = {
        "work": RunKind.EPOCH,
        "pipeline": "shop",
        "stages": ("orders",),
        "run_id": "run-1",
        "root": "run-1",
        "job_name": "shop",
        "restore_op": "restore",
    }
    return Order(**{**given, **more})


def test_an_order_is_read_as_it_was_given_and_one_of_another_version_names_the_cure() -> None:
    given = order(restore={"restore_from": "chk-1"}, stage_config={"orders": {"x": 1}}, shown=("a", "b"))
    assert Order.of(given.extras()) == given
    extras = given.extras()
    extras["dagster_ckpt"]["of_later"] = 1
    with pytest.raises(InvalidRequest, match="install the same version of dagster_ckpt in the code location"):
        Order.of(extras)
    with pytest.raises(InvalidRequest, match="not as a checkpointed pipeline"):
        Order.of({})


def test_a_program_that_nobody_launched_says_what_to_call(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequest, match="no Dagster run has launched this program: call run_epoch or run_stream"
    ):
        run_launched(shop(tmp_path), coordinator=CheckpointCoordinatorResource(base_dir=str(tmp_path)))


def record(**more: Any) -> CoordinatorRecord:
    given = {
        "pipeline": "shop",
        "owner": "run-1",
        "epoch": 3,
        "lineage": "l",
        "status": RunStatus.SUSPENDED,
        "status_epoch": 3,
        "clean": True,
    }
    return CoordinatorRecord.model_validate({**given, **more})


@pytest.mark.parametrize(
    ("found", "ended", "begins"),
    [
        (record(), Ended(epoch=3, lineage="l"), ""),
        (record(), None, ""),
        (record(status=RunStatus.FINISHED), None, ""),
        (record(status=RunStatus.RUNNING), None, "the program ended, but its run did not"),
        (record(status_epoch=2), None, "the program ended, but its run did not"),
        (record(status_epoch=2), Ended(epoch=3, lineage="l"), "the program ended, but its run did not"),
        (record(epoch=1, status_epoch=0, clean=False), None, "the program ended, but its run did not"),
        (record(status=RunStatus.CANCELED, status_epoch=2), None, "the program ended, but its run did not"),
        (record(clean=False, lease_until=9e9), None, "the program ended, but its run did not"),
        (record(clean=False), None, "the program ended, but its run did not"),
        (record(clean=False), Ended(epoch=3, lineage="l"), ""),
        (
            record(clean=False),
            Ended(epoch=3, lineage="l", interrupted=True),
            "the program was stopped from outside",
        ),
        (
            record(owner="run-2", epoch=4),
            Ended(epoch=3, lineage="l", interrupted=True),
            "the program was stopped from outside",
        ),
        (record(status=RunStatus.CANCELED), Ended(epoch=3), "the program was stopped from outside"),
        (
            record(status=RunStatus.FAILED, job_failure="too many"),
            None,
            "the run failed in the program: too many",
        ),
        (None, Ended(epoch=1, lineage="l"), "the program ran the pipeline, but in another store"),
        (None, None, "the program ended, but the store of this code location has no run"),
        (
            record(owner="run-0"),
            None,
            "the program ended, but in the store of this code location the newest run",
        ),
        (record(owner="run-2", epoch=4), Ended(epoch=3, lineage="l"), ""),
        (
            record(owner="run-2", epoch=4),
            Ended(epoch=3, lineage="of another"),
            "the program ran the pipeline, but",
        ),
        (record(owner="run-0", epoch=3), Ended(epoch=3, lineage="l"), "the program ran the pipeline, but"),
        (record(owner="run-2"), Ended(skipped="another one is alive"), ""),
    ],
)
def test_the_record_decides_whether_a_run_went_well(
    found: CoordinatorRecord | None, ended: Ended | None, begins: str
) -> None:
    why = why_not(found, ended, run_id="run-1", pipeline="shop")
    assert why.startswith(begins)
    assert bool(why) == bool(begins)


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_program_whose_stream_was_stopped_from_outside_says_so(
    tmp_path: Path, op: Noted, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    end = StreamEnd("run-1", savepoint="" if interrupted else "file:/s", interrupted=interrupted)
    monkeypatch.setattr(pipes, "hosted", lambda *_, **__: nullcontext(None))
    monkeypatch.setattr(pipes, "turn_of", lambda *_, **__: None)
    monkeypatch.setattr(pipes, "host_stream", lambda *_, **__: end)
    heard = Heard(op=op)
    remote = RemoteOp(lambda payload: heard.hear(json.loads(json.dumps(payload))))
    pipes._Program(shop(tmp_path), order(work=RunKind.STREAM), remote).stream({})
    assert heard.ended is not None
    assert heard.ended.interrupted is interrupted
    assert bool(why_not(record(clean=False), heard.ended, run_id="run-1", pipeline="shop")) is interrupted


def test_what_cannot_be_a_launch_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is no Pipes client"):
        Launch(client="subprocess")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="arguments has 'extras', which the op gives"):
        Launch(client=dg.PipesSubprocessClient(), arguments={"extras": {}})
    with pytest.raises(InvalidRequest, match="is no Launch"):
        PipelineOptions(launch=dg.PipesSubprocessClient())  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="run in one program, which no executor divides"):
        PipelineOptions(launch=Launch(client=dg.PipesSubprocessClient()), executor=dg.multiprocess_executor)
