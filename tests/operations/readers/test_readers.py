"""Whose tables readers find, told of every pipeline that a swap concerns."""

from __future__ import annotations

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.tables import ServingRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.operations.deployment import load_record, readers_of, readers_sentence
from dagster_ckpt.runtime.record_store import RecordChange, RecordStore
from dagster_ckpt.testing.memory import MemoryCoordinatorStore


def store_with(**serving: ServingRecord | None) -> MemoryCoordinatorStore:
    store = MemoryCoordinatorStore()
    for name, by in serving.items():
        record = CoordinatorRecord(pipeline=name, serving=by)
        RecordStore(store).transact(
            PipelineId(name), lambda _, record=record: RecordChange(answer=None, record=record)
        )
    return store


def told(store: MemoryCoordinatorStore, name: str) -> str:
    found = readers_of(store, load_record(store, PipelineId(name)))
    return "" if found is None else found.sentence(name)


def test_each_pipeline_of_a_swap_says_its_part_and_others_nothing() -> None:
    second = ServingRecord(pipeline="blue2", table_dir="/t", since=60.0, before="green")
    store = store_with(shop=second, green=None, blue2=None, other=None)
    at = "since 1970-01-01 00:01:00 UTC; before: green"
    assert told(store, "shop") == f"readers find the tables of blue2 {at}"
    assert told(store, "blue2") == f"readers of shop find its tables {at}"
    assert told(store, "green") == f"readers of shop find the tables of blue2 {at}"
    assert told(store, "other") == ""


def test_a_damaged_record_of_another_pipeline_hides_nothing() -> None:
    store = store_with(
        shop=ServingRecord(pipeline="green", table_dir="/t", since=60.0, before="shop"), green=None
    )
    store.compare_and_set(PipelineId("a_broken_one"), 0, "{", (), ())
    assert told(store, "green").startswith("readers of shop find its tables since")


def test_a_pipeline_that_serves_its_own_name_says_so() -> None:
    assert readers_sentence("shop", name="shop", serving="shop") == "readers find its own tables"
