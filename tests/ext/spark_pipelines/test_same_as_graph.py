"""A project that defines other things than its graph says, by what its surroundings tell it, does not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.elements import Elements, FlowElement, Kind, Namespace, OutputElement
from dagster_ckpt.ext.spark_pipelines.evaluate import Evaluated, Reads
from dagster_ckpt.ext.spark_pipelines.graph import CdcNode, DatasetNode, FlowNode, ProjectGraph
from dagster_ckpt.ext.spark_pipelines.rows import RunningProject, why_different
from tests.ext.spark_pipelines.conftest import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FULL = "spark_catalog.default."


def a_dataset(name: str, kind: Kind, **more: Any) -> DatasetNode:
    return DatasetNode(
        name=name, uid=name.rpartition(".")[2], kind=kind, where="a.py:1", row_schema="{}", **more
    )


def a_flow(target: str, name: str, **more: Any) -> FlowNode:
    written = target.rpartition(".")[2]
    return FlowNode(target=target, name=name, uid=name, where="a.py:1", written_target=written, **more)


def the_graph() -> ProjectGraph:
    return ProjectGraph(
        made_by="",
        catalog="spark_catalog",
        database="default",
        files={},
        datasets=(
            a_dataset(FULL + "orders", Kind.STREAMING_TABLE),
            a_dataset(FULL + "kept", Kind.STREAMING_TABLE),
            a_dataset("out", Kind.SINK, properties={"path": "/a"}),
            a_dataset(FULL + "sums", Kind.MATERIALIZED_VIEW),
        ),
        flows=(
            a_flow(FULL + "orders", "eu", conf={"a.b": "1"}),
            a_flow(FULL + "kept", "kept", cdc=CdcNode(keys=("k",), deletes=False, sequence="v")),
            a_flow("out", "out"),
        ),
    )


def defined(
    *, leave_out: str = "", flows: Mapping[str, Mapping[str, Any]] | None = None, **outputs: Mapping[str, Any]
) -> Elements:
    """Return what the graph says, with changes: of flows and outputs by name, new ones among them."""
    elements = Elements(namespace=Namespace(catalog="spark_catalog", database="default"))
    kept = SimpleNamespace(apply_as_deletes=None, stored_as_scd_type=1)
    all_outputs: dict[str, dict[str, Any]] = {
        "orders": {"name": FULL + "orders", "kind": Kind.STREAMING_TABLE},
        "kept": {"name": FULL + "kept", "kind": Kind.STREAMING_TABLE},
        "out": {"name": "out", "kind": Kind.SINK, "properties": {"path": "/a"}},
        "sums": {"name": FULL + "sums", "kind": Kind.MATERIALIZED_VIEW},
    }
    all_flows: dict[str, dict[str, Any]] = {
        "eu": {"target": "orders", "spark_conf": {"a.b": "1"}},
        "kept": {"target": "kept", "cdc": kept},
        "out": {"target": "out"},
        "sums": {"target": "sums"},
    }
    for name, more in outputs.items():
        all_outputs[name] = all_outputs.get(name, {}) | dict(more)
    for name, more in (flows or {}).items():
        all_flows[name] = all_flows.get(name, {}) | dict(more)
    for name, one in all_outputs.items():
        if name != leave_out:
            elements.add_output(OutputElement(where="a.py:1", **one))
    for name, one in all_flows.items():
        if leave_out not in (name, one["target"]):
            elements.add_flow(FlowElement(name=name, where="a.py:1", func=lambda: None, **one))  # type: ignore[arg-type,return-value]
    return elements


def test_what_its_graph_says_is_the_same() -> None:
    assert why_different(the_graph(), defined()) == ""
    view = {"name": "v", "kind": Kind.TEMPORARY_VIEW}
    assert why_different(the_graph(), defined(flows={"v": {"target": "v"}}, v=view)) == ""


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (defined(leave_out="sums"), f"'{FULL}sums' is not defined any more"),
        (defined(leave_out="eu"), f"flow 'eu' of '{FULL}orders' is not defined any more"),
        (defined(more={"name": "more", "kind": Kind.SINK}), "'more' is new"),
        (
            defined(new={"name": FULL + "new", "kind": Kind.MATERIALIZED_VIEW}),
            f"'{FULL}new' is new",
        ),
        (defined(flows={"us": {"target": "orders"}}), f"flow 'us' of '{FULL}orders' is new"),
        (
            defined(flows={"eu": {"spark_conf": {"a.b": "2"}}}),
            f"flow 'eu' of '{FULL}orders' has other options",
        ),
        (
            defined(flows={"kept": {"cdc": SimpleNamespace(apply_as_deletes="gone", stored_as_scd_type=1)}}),
            f"flow 'kept' of '{FULL}kept' has other options",
        ),
        (
            defined(flows={"kept": {"cdc": SimpleNamespace(apply_as_deletes=None, stored_as_scd_type=2)}}),
            f"flow 'kept' of '{FULL}kept' has other options",
        ),
        (defined(flows={"kept": {"cdc": None}}), f"flow 'kept' of '{FULL}kept' has other options"),
        (defined(out={"properties": {"path": "/b"}}), "'out' has other options"),
        (defined(sums={"kind": Kind.STREAMING_TABLE}), f"'{FULL}sums' has other options"),
    ],
    ids=[
        "view gone",
        "flow gone",
        "sink",
        "view",
        "flow",
        "conf",
        "deletes",
        "SCD type",
        "no cdc",
        "options",
        "kind",
    ],
)
def test_what_differs_is_said(now: Elements, said: str) -> None:
    assert said in why_different(the_graph(), now)


def test_a_dataset_that_appears_when_it_runs_is_refused_and_not_left_out(
    written: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGIONS_OF_TEST", "eu")
    project = written(
        """
import os
for region in os.environ["REGIONS_OF_TEST"].split():
    @dp.table(name=region)
    def orders():
        return spark.readStream.schema("k STRING, v INT").json(str(Path.cwd() / "feed" / "orders"))
"""
    )
    pipeline = project.pipeline()
    project.feed("orders", {"k": "a", "v": 1})
    monkeypatch.setenv("REGIONS_OF_TEST", "eu us")
    with pytest.raises(
        InvalidRequest, match=r"'spark_catalog.default.us' is new: the project depends on more than"
    ):
        project.epoch(pipeline)
    monkeypatch.setenv("REGIONS_OF_TEST", "eu")
    project.epoch(pipeline)


def test_an_auto_cdc_flow_with_other_keys_than_its_table_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    rows = spark.range(1).selectExpr("'a' AS k", "id AS v")
    cdc = SimpleNamespace(
        apply_as_deletes=None,
        stored_as_scd_type=1,
        keys=[rows["v"]],
        source="orders",
    )
    known = defined(flows={"kept": {"cdc": cdc}})
    monkeypatch.setattr(RunningProject, "known", lambda self: known)
    monkeypatch.setattr(RunningProject, "_evaluated", lambda *_, **__: Evaluated(rows, Reads()))
    running = RunningProject(SimpleNamespace(path="here"), the_graph(), None)  # type: ignore[arg-type]
    [flow] = the_graph().flows_of(FULL + "kept")
    with pytest.raises(
        InvalidRequest, match=r"flow 'kept' has other keys than its graph says: .* adopt-project here"
    ):
        running.flow(flow, {})
