"""One launch of a program by an op: its order, its messages, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord
from dagster_ckpt.dagster.console import failure
from dagster_ckpt.dagster.launched.hearing import hearing
from dagster_ckpt.dagster.launched.messages import Heard
from dagster_ckpt.dagster.launched.order import Order
from dagster_ckpt.dagster.launched.verdict import why_not
from dagster_ckpt.dagster.launchpad import restore_link
from dagster_ckpt.dagster.names import SKIPPED_TAG
from dagster_ckpt.dagster.options import Context, Launch
from dagster_ckpt.dagster.reports.asset import checkpoints_asset_key, checkpoints_partitions, completed_event
from dagster_ckpt.dagster.reports.op_log import OpOfRun
from dagster_ckpt.dagster.resources.pipeline import coordinator_of
from dagster_ckpt.dagster.runs.lease import owner_state
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.runtime.stored import read_metadata


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
