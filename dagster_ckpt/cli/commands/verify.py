"""verify: every file read back and compared."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipeline_option, refuse_unused
from dagster_ckpt.cli.output import Output
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.operations.readers.verify_tables import with_tables
from dagster_ckpt.operations.snapshots.catalog import SnapshotSummary, find_snapshot, list_snapshots
from dagster_ckpt.operations.snapshots.verify import Verified, not_opened, verify_snapshot
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot


@command("verify")
@click.argument("snapshots", nargs=-1)
@pipeline_option
@click.option("--all", "everything", is_flag=True, help="Everything that pipelines can be restored from.")
def verify(work: Invocation, *, snapshots: tuple[str, ...], pipeline: str, everything: bool) -> ExitCode:
    """Read every file of SNAPSHOTS (default: latest) and compare checksums. Exit code 1 when one is damaged."""
    if everything:
        refuse_unused(
            {f"{' '.join(snapshots)}": snapshots}, "is named beside --all, which reads everything: give one"
        )
        names = [pipeline_id(pipeline)] if pipeline else work.deployment.store.pipelines()
        results = [_verified(work, s) for name in names for s in list_snapshots(work.deployment, name)]
    else:
        chosen = pipeline_id(pipeline) if pipeline else None
        results = [
            _read_all(work, name, find_snapshot(work.deployment, name, chosen).stored)
            for name in snapshots or ("latest",)
        ]
    work.output.result(results)
    _show_verified(work.output, results)
    return ExitCode.FINE if all(found.is_intact for found in results) else ExitCode.TROUBLE


def _verified(work: Invocation, listed: SnapshotSummary) -> Verified:
    """Verify one of many: one that cannot even be opened must not hide what is wrong with the others."""
    try:
        stored = find_snapshot(work.deployment, listed.uri, listed.pipeline).stored
    except (NotFound, Corrupt) as error:
        return not_opened(listed.key, listed.uri, error)
    return _read_all(work, listed.key, stored)


def _read_all(work: Invocation, name: str, stored: StoredSnapshot) -> Verified:
    with work.output.progress(f"verifying {name}") as progress:
        return with_tables(verify_snapshot(stored, progress=progress), stored)


def _show_verified(output: Output, results: Sequence[Verified]) -> None:
    """Show what verifying found."""
    for found in results:
        verdict = "intact" if found.is_intact else f"{len(found.problems)} problems"
        output.say(f"{found.snapshot}: {verdict} ({counted(found.files, 'file')}, {size(found.bytes)})")
        for remark in found.remarks:
            output.say(f"{found.snapshot}: {remark}")
        if found.problems:
            rows = [(p.stage, p.problem, p.path, p.message) for p in found.problems]
            output.table("", ("stage", "problem", "file", "what"), rows)
