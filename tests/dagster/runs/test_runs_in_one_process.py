"""A run that starts while another run of the same process writes an event: Dagster configures logging anew then."""

import logging
import logging.config
import subprocess
import sys
import threading

import dagster as dg

from dagster_ckpt import CheckpointedPipeline
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.dagster.reports.events import DagsterEvents
from dagster_ckpt.dagster.reports.op_log import without_locks
from tests.progress import output_of
from tests.root import ROOT


class Told(logging.Handler):
    """Knows when Python's logging is being configured: that closes every handler, the newest first."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closing = threading.Event()

    def emit(self, record: logging.LogRecord) -> None: ...

    def flush(self) -> None:
        self.is_closing.set()


PIPELINE = CheckpointedPipeline(name=PipelineId("shop"), stages={}, upstream={})


@dg.op
def write_while_logging_is_configured(context: dg.OpExecutionContext) -> None:
    """What writing an event and starting a run do to logging's locks, in the order in which they would never end."""
    events = DagsterEvents(PIPELINE, job_name="shop", restore_op="restore")
    events.attach(context)
    told, is_writing = Told(), threading.Event()

    def while_it_is_written(_: object) -> None:
        is_writing.set()
        told.is_closing.wait()
        logging.getLogger("what a database driver does for every connection")

    context.instance.add_event_listener(context.run_id, while_it_is_written)
    writer = threading.Thread(target=events.info, args=["an event"], daemon=True)
    writer.start()
    is_writing.wait()
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
    writer.join()


def test_writing_an_event_and_starting_another_run_do_not_wait_for_each_other() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.dagster.runs.test_runs_in_one_process"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert output_of(child, "the run ends") == "True\n"


def test_a_handler_without_its_lock_writes_as_every_python_does() -> None:
    log, told = logging.Logger("of a step"), Told()
    log.addHandler(told)
    without_locks(log)
    with told.lock:  # type: ignore[union-attr]  # from Python 3.13 on
        pass
    told.acquire()  # before it
    told.release()
    log.info("an event")


if __name__ == "__main__":  # a process of its own: locks that are never let go keep it from ending, too
    with dg.instance_for_test() as instance:
        graph = dg.GraphDefinition(name="two_runs", node_defs=[write_while_logging_is_configured])
        print(graph.to_job().execute_in_process(instance=instance).success)
