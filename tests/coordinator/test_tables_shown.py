"""The pointer of readers: when it moves, what it keeps, and what it costs the store."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.tables import ShownTable, ShownTables
from dagster_ckpt.core.coordinator.completion import RIDES
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness, RecordingHook
from tests.records import find_record

TABLES = ("orders", "totals")


def showing(number: int | None, *, head: int | None = None) -> ShownTables:
    tables = {uid: ShownTable(uri=f"/tables/{uid}", head=head or number) for uid in TABLES}
    return ShownTables(checkpoint_id=number, tables=tables)


def with_tables(h: CoordinatorHarness) -> CoordinatorHarness:
    """Let the tables of this process show every checkpoint as soon as it is complete."""
    h.gateway.on_complete = lambda message: h.coordinator.tables_shown(showing(message.checkpoint_id))
    return h


def stored(h: CoordinatorHarness) -> CoordinatorRecord:
    found = find_record(h.memory_store, h.graph.pipeline)
    assert found is not None
    return found


def retained(h: CoordinatorHarness) -> list[int]:
    return [entry.checkpoint_id for entry in stored(h).completed]


def test_without_tables_the_newest_are_retained_as_in_flink() -> None:
    h = CoordinatorHarness(num_retained=1)
    for _ in range(3):
        h.completed_checkpoint()
    assert retained(h) == [3]
    assert stored(h).shown is None


def test_where_all_tables_show_the_newest_it_alone_is_retained_and_its_files_alone_are_there() -> None:
    h = with_tables(CoordinatorHarness(num_retained=1))
    for number in range(1, 4):
        h.completed_checkpoint()
        assert (retained(h), stored(h).shown) == ([number], showing(number))
    assert {key.split("/")[1] for key in h.files()} == {"chk-3"}
    assert h.subsumed == [1, 2]


def test_the_newest_that_all_tables_show_is_retained_until_they_show_a_newer_one() -> None:
    hook = RecordingHook("hook")
    h = with_tables(CoordinatorHarness(num_retained=2, hooks=[hook]))
    for _ in range(3):
        h.completed_checkpoint()
    h.gateway.on_complete = None  # a table refuses its rows
    for _ in range(4):
        h.completed_checkpoint()
    assert retained(h) == [3, 6, 7], "3 is beside the newest two"
    assert stored(h).shown == showing(3)
    with_tables(h)
    h.completed_checkpoint()
    assert (retained(h), stored(h).shown) == ([7, 8], showing(8))
    assert {key.split("/")[1] for key in h.files()} == {"chk-7", "chk-8"}
    assert h.subsumed == [1, 2, 4, 5, 6, 3]


def test_what_the_shown_one_shares_with_others_stays_while_it_is_retained() -> None:
    h = with_tables(CoordinatorHarness(num_retained=1, incremental=True))
    first = h.checkpoint()
    old = h.shared(first, "task", "old")
    h.acknowledge(first, "task", handles=[old])
    h.gateway.on_complete = None
    for _ in range(3):
        number = h.checkpoint()
        h.acknowledge(number, "task", handles=[h.shared(number, "task", "new")])
    assert old.key in h.files()
    with_tables(h)
    h.completed_checkpoint()
    assert old.key not in h.files()


def test_what_a_pointer_leaves_is_whole_until_the_pointer_is_stored() -> None:
    """It waits, has let go of a checkpoint in memory, and the files of another one are deleted meanwhile."""
    hook = RecordingHook("hook")
    h = with_tables(
        CoordinatorHarness(num_retained=1, incremental=True, interval=RIDES / 2, running=False, hooks=[hook])
    )
    h.run()
    files = []
    for ledger_refuses in (False, True, True, False):
        h.advance(RIDES / 2)
        [number] = h.pending
        files.append(h.shared(number, "task", f"of-{number}"))
        if ledger_refuses:
            h.gateway.on_complete = None
        else:
            with_tables(h)
        h.acknowledge(number, "task", handles=[files[-1]])
    assert (retained(h), stored(h).shown) == ([1, 4], showing(1)), "the pointer to 4 waits for a write"
    h.coordinator.poll()
    assert files[0].key in h.files()
    assert hook.subsumed_ids == [2, 3]
    h.advance(RIDES / 2)
    assert (retained(h), stored(h).shown) == ([4], showing(4))
    assert files[0].key not in h.files()
    assert hook.subsumed_ids == [2, 3, 1]


def test_a_restore_lets_go_of_what_was_retained_for_readers_only() -> None:
    h = with_tables(CoordinatorHarness(num_retained=1))
    h.completed_checkpoint()
    h.gateway.on_complete = None
    h.completed_checkpoint()
    h.completed_checkpoint()
    assert retained(h) == [1, 3]
    restored = h.next_attempt(running=False)
    restored.coordinator.started("/work/run-2", showing(3))
    assert (retained(restored), stored(restored).shown) == ([3], showing(3))


def test_a_pointer_comes_with_the_next_write_where_a_trigger_is_near_and_at_once_where_none_is() -> None:
    seldom = with_tables(CoordinatorHarness(interval=60.0))
    before = version(seldom)
    seldom.completed_checkpoint()
    assert stored(seldom).shown == showing(1)
    assert version(seldom) - before == 3, "trigger, completion, pointer"

    often = with_tables(CoordinatorHarness(interval=RIDES / 2))
    often.advance(RIDES / 2)
    before = version(often)
    [number] = often.pending
    often.acknowledge_all(number)
    assert (stored(often).shown, version(often) - before) == (None, 1), "the completion"
    often.advance(RIDES / 2)
    assert (stored(often).shown, version(often) - before) == (showing(number), 2), "with the next trigger"


def version(h: CoordinatorHarness) -> int:
    found = h.memory_store.load(h.graph.pipeline)
    assert found is not None
    return found.version


@pytest.mark.parametrize("end", ["close", "pass_on"])
def test_a_pointer_that_waits_for_a_write_arrives_with_the_end(end: str) -> None:
    h = with_tables(CoordinatorHarness(interval=RIDES / 2))
    h.advance(RIDES / 2)
    [number] = h.pending
    h.acknowledge_all(number)
    assert stored(h).shown is None
    if end == "close":
        h.close()
    else:
        h.coordinator.pass_on(h.clock.now() + 60)
    assert stored(h).shown == showing(number)


def test_a_pointer_goes_back_with_the_start_of_an_attempt_only() -> None:
    h = with_tables(CoordinatorHarness(num_retained=3))
    for _ in range(3):
        h.completed_checkpoint()
    h.coordinator.tables_shown(showing(2))
    h.coordinator.notify_again()
    assert stored(h).shown == showing(3)
    kept = h.next_attempt(restore_from="chk-1")
    assert stored(kept).shown == showing(3), "nobody has taken rows back"
    back = kept.next_attempt("run-3", restore_from="chk-1", running=False)
    back.coordinator.started("/work/run-3", showing(1))
    assert stored(back).shown == showing(1)
    emptied = back.next_attempt("run-4", restore_from="none", running=False)
    emptied.coordinator.started("/work/run-4", showing(None))
    assert stored(emptied).shown == showing(None)
    with_tables(emptied).completed_checkpoint()
    assert stored(emptied).shown == showing(4)


def test_a_fenced_attempt_moves_no_pointer() -> None:
    old = with_tables(CoordinatorHarness())
    old.completed_checkpoint()
    new = with_tables(old.next_attempt())
    new.completed_checkpoint()
    old.coordinator.tables_shown(showing(9))
    with pytest.raises(Exception, match="was fenced"):
        old.coordinator.poll()
    assert stored(new).shown == showing(2)


def test_a_store_that_fails_keeps_the_pointer_until_the_next_write() -> None:
    h = with_tables(CoordinatorHarness(num_retained=1))
    h.completed_checkpoint()
    number = h.checkpoint()

    def shown_and_store_fails(message: object) -> None:
        h.coordinator.tables_shown(showing(number))
        h.fail_next_store()

    h.gateway.on_complete = shown_and_store_fails
    h.acknowledge_all(number)
    assert (stored(h).shown, retained(h)) == (showing(1), [1, 2]), "readers find what is retained"
    assert any("/chk-1/" in key for key in h.files())
    h.trigger()
    assert (stored(h).shown, retained(h)) == (showing(2), [2])
