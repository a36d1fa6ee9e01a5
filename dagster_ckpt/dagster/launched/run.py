"""One launch of a program by an op: its order, its messages, and its verdict.

Messages are heard as they come; Pipes itself keeps them until the program has ended. Whether a run went well is said by
the coordinator's record, not by the program's exit nor its messages.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster._core.pipes.context import PipesMessageHandler
from dagster_pipes import PipesMessage, PipesParams

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.dagster.console import failure
from dagster_ckpt.dagster.launched.messages import Ended, Heard, Order
from dagster_ckpt.dagster.launchpad import restore_link
from dagster_ckpt.dagster.names import SKIPPED_TAG
from dagster_ckpt.dagster.options import Context, Launch
from dagster_ckpt.dagster.reports.asset import checkpoints_asset_key, checkpoints_partitions, completed_event
from dagster_ckpt.dagster.reports.op_log import OpOfRun
from dagster_ckpt.dagster.resources.pipeline import coordinator_of
from dagster_ckpt.dagster.runs.turn import owner_state
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.runtime.stored import read_metadata

_STOPPED = (
    "the program was stopped from outside (SIGTERM or SIGINT), and this run was not terminated: the next run goes on "
    "from the latest checkpoint"
)
_NOT_ENDED = (
    "the program ended, but its run did not: it was stopped from outside, or the client returned while it still runs; "
    "the next run goes on from the latest checkpoint"
)


def why_not(record: CoordinatorRecord | None, ended: Ended | None, *, run_id: str, pipeline: str) -> str:
    """Return why a run whose program has ended without an error must fail; empty: it went well."""
    if ended is not None and ended.skipped:
        return ""
    if ended is not None and ended.interrupted:
        return _STOPPED
    if record is not None and record.owner == run_id:
        return _why_not_ended(record, is_told=ended is not None)
    if ended is not None and record is not None and _is_earlier(ended, record):
        return ""  # it said how it ended, in this store; another run has taken its turn since
    found = (
        "the store of this code location has no run of the pipeline"
        if record is None
        else f"in the store of this code location the newest run of the pipeline is {record.owner or 'none'}"
    )
    if ended is None:
        return (
            f"the program ended, but {found}, not this one ({run_id}): does it call run_launched({pipeline}, ...), and "
            "is its coordinator's store_url that of the code location?"
        )
    return (
        f"the program ran the pipeline, but in another store: {found}. Give its coordinator the store_url of the code "
        "location"
    )


def _is_earlier(ended: Ended, record: CoordinatorRecord) -> bool:
    return bool(ended.lineage) and ended.lineage == record.lineage and 0 < ended.epoch < record.epoch


def _why_not_ended(record: CoordinatorRecord, *, is_told: bool) -> str:
    if (
        record.status_epoch != record.epoch
    ):  # claimed and never started: the status is that of the attempt before
        return _NOT_ENDED
    match record.status:
        case RunStatus.SUSPENDED if _is_between_attempts(record, is_told=is_told):
            return _NOT_ENDED
        case RunStatus.SUSPENDED | RunStatus.FINISHED:
            return ""
        case RunStatus.RUNNING:
            return _NOT_ENDED
        case RunStatus.CANCELED:
            return _STOPPED
        case RunStatus.FAILED:
            why = f": {record.job_failure}" if record.job_failure else ", as its log says"
            return f"the run failed in the program{why}"


def _is_between_attempts(record: CoordinatorRecord, *, is_told: bool) -> bool:
    """Return True where a stream's attempt has failed and the next one is to follow: it never is left clean."""
    return record.lease_until is not None or not (record.clean or is_told)


Hear = Callable[[Any], bool]
"""Gets a custom message; returns whether it was meant for it."""


def hearing(client: dg.PipesClient, hear: Hear) -> dg.PipesClient:
    """Return the client with ``hear`` before Pipes' own handler; the one given is left as it is.

    A client that makes its reader when it runs, and so has none now, is returned as it is: its messages are there at
    its end (``get_custom_messages``).
    """
    readers = {
        name: value for name, value in vars(client).items() if isinstance(value, dg.PipesMessageReader)
    }
    if not readers:
        return client
    copied = copy.copy(client)
    for name, reader in readers.items():
        setattr(copied, name, _hearing_reader(reader, hear))
    return copied


def _hearing_reader(reader: dg.PipesMessageReader, hear: Hear) -> dg.PipesMessageReader:
    """Return a copy of a reader, of a class derived from its own: clients ask what kind of reader they have."""
    kind = type(reader)

    class Hearing(kind):  # type: ignore[misc, valid-type]
        @contextmanager
        def read_messages(self, handler: PipesMessageHandler) -> Iterator[PipesParams]:
            with super().read_messages(_hearing_handler(handler, hear)) as params:
                yield params

    Hearing.__name__, Hearing.__qualname__ = kind.__name__, kind.__qualname__
    copied = copy.copy(reader)
    copied.__class__ = Hearing
    return copied


class _HearingHandler(PipesMessageHandler):
    """The session's handler, whose state it shares, with somebody who hears first."""

    _hear: Hear

    def handle_message(self, message: PipesMessage) -> None:
        params = message.get("params") or {}
        if message["method"] == "report_custom_message" and self._hear(params.get("payload")):
            return
        super().handle_message(message)


def _hearing_handler(handler: PipesMessageHandler, hear: Hear) -> PipesMessageHandler:
    copied = object.__new__(_HearingHandler)
    # One dictionary for both: what one has counted (opened, closed) the other knows, and no number is copied.
    handler.__dict__["_hear"] = hear
    copied.__dict__ = handler.__dict__
    return copied


@dataclass(frozen=True, kw_only=True)
class LaunchedRun:
    """One launch; ``op`` is the context that events are written to, ``context`` the one the client gets."""

    pipeline: CheckpointedPipeline
    launch: Launch
    context: Context
    op: dg.OpExecutionContext
    order: Order

    def run(self, *, hold: frozenset[dg.AssetKey] = frozenset()) -> Heard:
        """Launch the program, and return what was heard when it has ended well.

        Raises Failure where the record does not say that it ended well, and what the client raises.
        """
        heard = Heard(op=OpOfRun(self.op), hold=hold)
        arguments = self.launch.arguments_for(self.context)
        order = self._with_ended_owner()
        client = hearing(self.launch.client, heard.hear)
        try:
            completed = client.run(context=self.context, extras=order.extras(), **arguments)
            heard.hear_all(completed.get_custom_messages())
        except Exception as error:
            if heard.failed is not None:
                raise failure(heard.failed.message, allow_retries=not heard.failed.is_final) from error
            raise
        finally:
            self._tell_untold(heard)
        self._judge(heard)
        return heard

    # --- before it ------------------------------------------------------------------------------------------------

    def _record(self) -> CoordinatorRecord | None:
        return RecordStore(coordinator_of(self.op, self.pipeline.name).store()).record(self.pipeline.name)

    def _with_ended_owner(self) -> Order:
        """Return the order with what Dagster has seen of the owner's end: the program would wait for its lease."""
        record = self._record()
        if record is None or not record.owner:
            return self.order
        state = owner_state(self.op.instance, record.owner)
        if not state.is_over:
            return self.order
        return self.order.model_copy(update={"ended_run": record.owner, "ended_state": state})

    # --- after it -------------------------------------------------------------------------------------------------

    def _judge(self, heard: Heard) -> None:
        if heard.failed is not None:
            raise failure(heard.failed.message, allow_retries=not heard.failed.is_final)
        if heard.lost:
            self.op.log.warning(
                f"{heard.lost} messages of the program were lost: what it did is in the store and in the tables, and "
                "its own log says the rest"
            )
        why = why_not(self._record(), heard.ended, run_id=self.order.run_id, pipeline=self.pipeline.name)
        if why:
            raise failure(why)
        if heard.ended is None:
            self.op.log.warning(
                "the program's last messages did not arrive; the coordinator's record says that the run ended in order"
            )
        elif heard.ended.skipped:
            self.op.log.info(heard.ended.skipped)
            self.op.instance.add_run_tags(self.op.run_id, {SKIPPED_TAG: "true"})
        elif heard.ended.said:
            self.op.log.info(heard.ended.said)

    def _tell_untold(self, heard: Heard) -> None:
        """Tell of what this run completed, where messages were cut short; the safety net does the same later."""
        if heard.is_whole:
            return
        try:
            record = self._record()
            entries = [] if record is None else [*record.completed, *record.savepoints]
            untold = [e for e in entries if e.run_id == self.order.run_id and e.known.key not in heard.told]
            for entry in sorted(untold, key=lambda e: e.checkpoint_id):
                self._tell(heard, entry)
        except CheckpointError as error:
            self.op.log.warning(f"what the program completed could not be looked up: {error}")

    def _tell(self, heard: Heard, entry: CompletedRecord) -> None:
        resource, name = coordinator_of(self.op, self.pipeline.name), self.pipeline.name
        storage = resource.open_storage(entry.location.base_uri)
        metadata = read_metadata(storage, entry.location.folder, recorded=entry.metadata_checksum)
        link = restore_link(
            job_name=self.order.job_name,
            location=self.order.location,
            restore_op=self.order.restore_op,
            restore_from=entry.known.key,
            ui_base_url=self.order.ui_base_url,
        )
        heard.op.add_partition(checkpoints_partitions(name).name or "", entry.known.key)
        heard.op.event(
            completed_event(
                name,
                metadata,
                uri=entry.location.uri,
                link=link if self.order.location else None,
                page=self.order.page,
            )
        )
        self.op.log.info(
            f"{entry.known.key} of {checkpoints_asset_key(name).to_user_string()} is told from storage: the program's "
            "message did not arrive"
        )
