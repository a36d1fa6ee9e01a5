"""Every command that needs neither Spark nor Dagster, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from dagster_ckpt.cli.app import main
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import StageSnapshot
from tests.cli.conftest import Program
from tests.operations.readers.test_diff_tables import Rows
from tests.operations.world import World
from tests.spark.snapshot.fake_checkpoint import FakeQuery


def test_list_names_what_can_be_restored(world: World, run: Program) -> None:
    world.checkpoint(1)
    world.savepoint(2, name="before the release")
    text = run("list").stdout
    assert "chk-000001" in text
    assert "before the release" in text
    headings = [run("list", *option).stdout.splitlines() for option in ((), ("--long",))]
    assert [any("place" in line and "attempt" in line for line in lines) for lines in headings] == [
        False,
        True,
    ]
    found = run.json("list")
    assert [(s["key"], s["status"]) for s in found] == [
        ("savepoint-000002", "savepoint"),
        ("chk-000001", "retained"),
    ]
    assert found[0]["duration"] == 0.5


def test_list_and_show_say_what_a_snapshot_is_kept_for(world: World, run: Program) -> None:
    world.checkpoint(1)
    world.checkpoint(2)
    world.savepoint(3, others=(StageSnapshot(uid="slow", parallelism=1, finished=True),))
    of_an_hour, newest = (record := world.record()).completed
    world.write(
        record.model_copy(
            update={
                "completed": (
                    of_an_hour.model_copy(update={"stands_for": "hour, day"}),
                    newest.model_copy(update={"lost": "offset 2 of topic a", "lost_since": 86_400.0}),
                )
            }
        )
    )
    assert {s["key"]: s["kept_for"] for s in run.json("list")} == {
        "savepoint-000003": "you",
        "chk-000002": "newest",
        "chk-000001": "its hour and its day",
    }
    lines = run("list").stdout.splitlines()
    assert [line for line in lines if line.rstrip().endswith("its hour, day") and "chk-000001" in line]
    assert [line for line in lines if line.rstrip().endswith("gone") and "chk-000002" in line]
    why = "chk-000002 can no longer be restored: offset 2 of topic a is gone, as is known since 1970-01-02"
    assert why in " ".join(run("list").stdout.split())
    assert max(len(line) for line in lines if "can no longer" not in line) <= 80
    assert "kept: for its hour and its day (setting retention)" in run("show", "chk-1", "-p", "sales").stdout
    assert (
        "kept: as one of the newest (setting num_retained, or keep_last of retention)"
        in run("show", "chk-2", "-p", "sales").stdout
    )
    shown = run("show", "savepoint-3", "-p", "sales").stdout
    assert "kept: for you, until it is disposed of" in shown
    assert "slow (FINISHED)" in shown


def test_list_shows_pipelines_history_and_the_storage_alone(world: World, run: Program, base: Path) -> None:
    world.checkpoint(1)
    world.checkpoint(2)
    world.savepoint(3)
    world.over(1, CheckpointStatus.SUBSUMED)
    world.over(4, CheckpointStatus.FAILED)
    assert run.json("list", "--pipelines")[0]["latest"] == "chk-000002"
    assert "chk-000002" in run("list", "--pipelines").stdout
    assert [s["status"] for s in run.json("list", "--history")] == [
        "failed",
        "savepoint",
        "retained",
        "subsumed",
    ]
    assert [s["checkpoint_id"] for s in run.json("list", "--history", "--limit", "1")] == [4]
    assert "disk full" in run("list", "--history").stdout
    (base / "coordinator.db").unlink()
    alone = run.json("list", "--from-storage")
    assert [s["metadata"]["checkpoint_id"] for s in alone] == [1, 2, 3]
    assert "savepoint-sales-000003" in run("list", "--from-storage").stdout


def test_one_damaged_record_does_not_hide_the_other_pipelines(world: World, run: Program) -> None:
    world.checkpoint(1)
    world.store.compare_and_set(PipelineId("broken"), 0, "[" * 200_000)
    for what in ((), ("--pipelines",)):
        listed = run("list", *what, code=1)
        assert "chk-000001" in listed.stdout
        assert "Error: broken: the coordinator's record cannot be read" in listed.stderr
        run("list", "-p", "broken", *what, code=4)


def test_show_tells_stages_offsets_and_state(world: World, run: Program) -> None:
    world.checkpoint(1)
    text = run("show", "latest").stdout
    assert "chk-000001" in text
    assert "totals" in text
    found = run.json("show", "chk-1", "-p", "sales")
    subtasks = found["subtasks"]["totals"]
    assert [one["index"] for one in subtasks] == [0, 1]
    assert all(one["bytes_full"] == one["bytes_new"] > 0 for one in subtasks)
    assert sum(one["files"] for one in subtasks) < found["metadata"]["stages"][0]["metrics"]["files_full"]
    assert "subtasks of totals: 2, " in text
    world.checkpoint(2)
    again = run.json("show", "chk-2", "-p", "sales")["subtasks"]["totals"]
    assert all(0 < one["bytes_new"] < one["bytes_full"] for one in again)
    assert found["metadata"]["stages"][0]["offsets"] == {"0": {"pos": 1}}
    assert found["is_recorded"] is True
    assert [t["name"] for t in found["state"]["totals"]] == ["0"]


def test_verify_reads_everything_and_names_damage(world: World, run: Program, base: Path) -> None:
    world.query().commit(2).snapshot(2)
    world.checkpoint(1)
    world.savepoint(2)
    assert [v["is_intact"] for v in run.json("verify", "--all")] == [True, True]
    assert "intact" in run("verify", "chk-1").stdout
    damaged = next((base / "checkpoints/sales/shared").rglob("*.sst"))
    damaged.chmod(0o644)
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    (found,) = run.json("verify", "chk-1", code=1)
    assert [p["problem"] for p in found["problems"]] == ["damaged"]
    assert damaged.name in run("verify", code=1).stdout


def test_verify_all_goes_on_past_a_snapshot_that_cannot_be_opened(
    world: World, run: Program, base: Path
) -> None:
    world.query().commit(2).snapshot(2)
    for number in (1, 2, 3):
        world.checkpoint(number)
    gone, cut, _ = sorted((base / "checkpoints/sales").glob("chk-*/_metadata"))
    cut.chmod(0o644)
    cut.write_bytes(cut.read_bytes()[:40])
    gone.unlink()
    found = {v["snapshot"]: v for v in run.json("verify", "--all", code=1)}
    assert len(found) == 3
    assert [p["problem"] for p in found["chk-000001"]["problems"]] == ["missing"]
    assert [p["problem"] for p in found["chk-000002"]["problems"]] == ["unreadable"]
    assert sum(v["is_intact"] for v in found.values()) == 1
    assert "_metadata" in run("verify", "--all", code=1).stdout
    assert run("verify", "chk-1", code=3).stderr


def test_inspect_names_the_tables_of_state_without_spark(world: World, run: Program) -> None:
    world.checkpoint(1)
    assert [t["name"] for t in run.json("inspect", "latest", "totals", "--tables")] == ["0"]
    assert "table" in run("inspect", "latest", "totals", "--tables").stdout


def test_diff_compares_and_can_say_so_by_its_exit_code(world: World, run: Program) -> None:
    world.checkpoint(1)
    world.checkpoint(2)
    found = run.json("diff", "chk-1", "chk-2")
    assert found["diff"]["is_same"] is False
    assert found["diff"]["stages"][0]["offsets"][0]["units"] == 2
    assert "offsets" in run("diff", "chk-1", "chk-2", "--exit-code", code=1).stdout
    assert "the same state" in run("diff", "chk-2", "chk-2", "--exit-code").stdout


def test_preview_says_what_is_read_again_and_refuses_with_1(world: World, run: Program, base: Path) -> None:
    world.checkpoint(1)
    world.checkpoint(2, batches=3)
    found = run.json("preview", "chk-1")
    assert found["is_possible"] is True
    assert found["replay"][0]["step"]["units"] == 3
    assert "can be restored" in run("preview", "chk-1").stdout
    gone = next((base / "checkpoints/sales/chk-1").rglob("manifest.parquet"))
    gone.unlink()
    refused = run("preview", "chk-1", code=1).stdout
    assert "CANNOT be restored" in refused
    assert "manifest.parquet" in refused


def test_export_and_import_move_a_savepoint_to_another_deployment(
    world: World, run: Program, tmp_path: Path
) -> None:
    world.checkpoint(1)
    done = run.json("export", "latest", str(tmp_path / "usb"), "--note", "moving house", "--label", "a=b")
    assert done["metadata"]["note"] == "moving house"
    there = Program(tmp_path / "new")
    brought = there.json("import", done["uri"], "--name", "arrived")
    assert brought["key"] == "savepoint-000001"
    assert [s["name"] for s in there.json("list")] == ["arrived"]
    assert there.json("verify", brought["key"])[0]["is_intact"] is True
    again = Program(tmp_path / "third")
    assert "savepoint-000001" in again("import", "--no-copy", done["uri"]).stdout
    assert again.json("show", "savepoint-1")["uri"] == done["uri"]


def test_adopt_makes_a_savepoint_of_sparks_own_directory(run: Program, tmp_path: Path) -> None:
    query = FakeQuery(tmp_path / "theirs").commit(3)
    (query.query / "offsets/3").write_text((query.query / "offsets/2").read_text())
    done = run.json("adopt", "sales", f"totals={query.query}", "--name", "from the old job")
    assert done["stages"][0]["batch_id"] == 2
    text = run("adopt", "sales", f"totals={query.query}", "--batch", "1").stdout
    assert "batch 1 of query" in text
    assert "batch 2 was begun" in text
    assert [s["checkpoint_id"] for s in run.json("list")] == [2, 1]


def test_dispose_says_what_would_go_and_goes_with_yes(world: World, run: Program, base: Path) -> None:
    world.savepoint(1)
    assert "would remove savepoint-000001" in run("dispose", "savepoint-1").stdout
    assert run.json("dispose", "savepoint-1")["dry_run"] is True
    assert run.json("list") != []
    assert run.json("dispose", "savepoint-1", "--yes")["done"]["files"] > 0
    assert run.json("list") == []
    assert not list((base / "savepoints").rglob("*.parquet"))


def test_clean_says_what_would_go_and_goes_with_yes(world: World, run: Program, base: Path) -> None:
    world.checkpoint(1)
    world.checkpoint(2)
    world.over(1, CheckpointStatus.SUBSUMED)
    assert "repeat with --yes" in run("clean").stdout
    assert (base / "checkpoints/sales/chk-1").exists()
    planned = run.json("clean", "sales")
    assert planned["dry_run"] is True
    assert planned["plans"][0]["files"] > 0
    assert "chk-1" in run("clean", "--verbose").stdout
    assert "freed" in run("clean", "--yes").stdout
    assert not (base / "checkpoints/sales/chk-1").exists()
    assert run.json("clean", "--yes")["done"][0]["files"] == 0
    assert run.json("verify", "--all")[0]["is_intact"] is True


def test_doctor_finds_what_is_missing_and_what_is_left_over(world: World, run: Program, base: Path) -> None:
    world.checkpoint(1)
    world.checkpoint(2)
    assert "healthy" in run("doctor").stdout
    world.over(1, CheckpointStatus.SUBSUMED)
    found = run.json("doctor")
    assert [f["kind"] for f in found["findings"]] == ["orphaned"]
    (base / "checkpoints/sales/chk-2/_metadata").unlink()
    kinds = [f["kind"] for f in run.json("doctor", "sales", code=1)["findings"]]
    assert "missing" in kinds
    assert "somebody should act" in run("doctor", code=1).stdout


def test_locations_come_from_the_environment(
    world: World, run: Program, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.checkpoint(1)
    monkeypatch.setenv("DAGSTER_CKPT_BASE", str(base))
    assert "chk-000001" in run.bare("list").stdout
    monkeypatch.delenv("DAGSTER_CKPT_BASE")
    monkeypatch.setenv("DAGSTER_CKPT_STORE", f"sqlite:///{base / 'coordinator.db'}")
    monkeypatch.setenv("DAGSTER_CKPT_STORAGE", (base / "checkpoints").as_uri())
    assert "chk-000001" in run.bare("list").stdout
    assert json.loads(run.bare("verify", "--json").stdout)[0]["is_intact"] is True


def test_dagsters_own_storage_is_the_last_place_to_look(
    tmp_path: Path, run: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    failed = run.bare("list", code=3)
    assert str(home / "storage" / "dagster_ckpt" / "coordinator.db") in failed.stderr


def test_history_fits_80_columns_and_says_what_failed(
    world: World, run: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    world.checkpoint(1)
    world.savepoint(2)
    world.over(3, CheckpointStatus.FAILED)
    for command in (("history",), ("top", "--times", "1"), ("list", "--history")):
        text = run(*command).stdout
        assert max(map(len, text.splitlines())) <= 80
        assert "3 failed: disk full" in text
    assert run.json("history", "--limit", "1")["statistics"]["history"][0]["checkpoint_id"] == 3
    assert run.json("top")["pipeline"] == "sales"


def test_the_page_is_a_file_and_its_links_need_a_location(world: World, run: Program, tmp_path: Path) -> None:
    world.checkpoint(1)
    page = tmp_path / "page.html"
    assert str(page) in run("page", "-o", str(page)).stdout
    assert "<code>dagster-ckpt preview --" in (text := page.read_text()), "a restore would need the code"
    assert "chk-000001 -p sales</code>" in text
    run("page", "-o", str(page), "-f", "my shop.py")
    assert "<code>dagster-ckpt restore --" in (text := page.read_text())
    assert "chk-000001 -p sales -f &#x27;my shop.py&#x27;</code>" in text
    run("page", "-o", str(page), "--dagster", "localhost:3000", "--location", "shop")
    text = page.read_text()
    assert 'href="http://localhost:3000/locations/shop/jobs/sales/playground/setup?config=' in text
    assert "/jobs/sales_restore/" in text
    assert "--location" in run("page", "--dagster", "localhost:3000", code=2).stderr
    assert "not both" in run("page", "--serve", "-o", "x", code=2).stderr
    assert "cannot be written" in run("page", "-o", str(tmp_path / "no" / "such"), code=2).stderr


def test_the_audit_says_who_had_what_done_and_what_they_were_shown(
    world: World, run: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.checkpoint(1)
    world.savepoint(2)
    assert "nobody has restored" in run("audit").stdout
    monkeypatch.setenv("LOGNAME", "ann")
    assert run("dispose", "savepoint-2", "--yes").exit_code == 0
    [row] = run.json("audit")
    assert (row["what"], row["key"], row["who"]) == ("disposed", "savepoint-000002", "ann")
    lines = run("audit").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if "disposed" in line and "savepoint-000002" in line and "ann" in line]
    assert " files, " in run("audit", "--previews").stdout


def completed(words: list[str], incomplete: str, base: Path) -> list[str]:
    complete = ShellComplete(main, {}, "dagster-ckpt", "_DAGSTER_CKPT_COMPLETE")
    return [item.value for item in complete.get_completions([*words, "--base", str(base)], incomplete)]


def test_a_shell_completes_pipelines_and_snapshots(
    world: World, run: Program, base: Path, tmp_path: Path
) -> None:
    world.checkpoint(1)
    world.savepoint(2)
    assert completed(["show"], "", base) == ["latest", "savepoint-000002", "chk-000001"]
    assert completed(["show"], "sa", base) == ["savepoint-000002"]
    assert completed(["list", "-p"], "s", base) == []
    complete = ShellComplete(main, {}, "dagster-ckpt", "_DAGSTER_CKPT_COMPLETE")
    named = complete.get_completions(["list", "--base", str(base), "-p"], "s")
    assert [item.value for item in named] == ["sales"]
    assert completed(["show"], "", tmp_path / "nowhere") == []


def test_wrong_usage_is_json_where_that_is_asked_for_and_names_the_nearest_command(run: Program) -> None:
    told = json.loads(run.bare("lst", "--json", code=2).stdout)
    assert told == {"error": {"kind": "usage", "message": "No such command 'lst'. Did you mean 'list'?"}}
    assert "Did you mean 'list'?" in run.bare("lst", code=2).output
    assert json.loads(run.bare("show", "--json", code=2).stdout)["error"]["kind"] == "usage"
    assert json.loads(run.bare("list", "--limit", "x", "--json", code=2).stdout)["error"]["kind"] == "usage"


def test_two_tables_are_compared_by_their_rows(run: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, bob = {"name": "ann", "spent": 5}, {"name": "bob", "spent": 7}
    tables = {"/old": Rows(ann, bob, place="/old"), "/new": Rows({**ann, "spent": 6}, place="/new")}
    monkeypatch.setattr("dagster_ckpt.cli.commands.diff.load_table", tables.__getitem__)
    text = run("diff-tables", "/old", "/new", "--key", "name", "--exit-code", code=1).stdout
    assert "0 rows are the same, 0 added, 1 missing, 1 changed" in text
    assert "changed: name=ann, spent=5 -> name=ann, spent=6" in text
    assert run.json("diff-tables", "/old", "/new")["missing"] == 2
    assert "they hold the same rows" in run("diff-tables", "/old", "/old", "--exit-code").stdout


def test_metrics_are_prometheus_text_or_sent_to_a_collector(world: World, run: Program) -> None:
    world.checkpoint(1)
    text = run("metrics").stdout
    assert 'dagster_ckpt_lastCompletedCheckpointId{pipeline="sales"} 1.0' in text
    assert run.json("metrics")["text"].startswith("# HELP dagster_ckpt_readable ")
    assert "not both" in run("metrics", "--serve", "--otlp", "http://localhost:1", code=2).stderr
    assert "no_such" in run("metrics", "-p", "no_such", code=3).stderr
