"""What people see of long work on a terminal, and what programs do not."""

from __future__ import annotations

import io
import os
import sys

import pytest

from dagster_ckpt.cli.output import Output
from dagster_ckpt.cli.spark_session import quiet_java
from dagster_ckpt.errors import Corrupt, printable
from dagster_ckpt.operations.deployment import ByteProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(output: Output) -> None:
    with output.progress("verifying chk-1") as progress:
        progress(ByteProgress(done=1_000, total=4_000, what="a file"))
    with output.busy("reading state"):
        pass


def shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, output: Output) -> str:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    # in the test itself: pytest sets its own stream between fixtures and test
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        work(output)
    return terminal.getvalue()


def test_a_terminal_shows_a_bar_with_bytes_and_that_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = shown_on_a_terminal(monkeypatch, Output(as_json=False))
    assert "verifying chk-1" in shown
    assert "1.0/4.0 kB" in shown
    assert "reading state …" in shown


def test_a_program_that_asked_for_json_is_shown_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_on_a_terminal(monkeypatch, Output(as_json=True)) == ""


def test_a_pipe_is_shown_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    work(Output(as_json=False))
    assert capsys.readouterr().err == ""


def test_java_is_heard_only_where_it_does_not_start(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_java():
        os.write(2, b"WARN: hostname\n")
    assert capfd.readouterr().err == ""

    @quiet_java()
    def failing() -> None:
        os.write(2, b"no memory\n")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert capfd.readouterr().err == "no memory\n"


STEERING = "ok\x1b]52;c;AAAA\x07\x1b[2J\x9b1m\u202e [/bold] [red]"


def test_what_others_wrote_is_printed_and_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=False)
    output.say(STEERING)
    output.table(STEERING, ["name"], [(STEERING,)])
    output.list(STEERING, ["name"], [(STEERING,)])
    assert str(Corrupt(STEERING)) == printable(STEERING)
    shown = capsys.readouterr().out
    assert shown.count("ok\\x1b]52;c;AAAA\\x07\\x1b[2J\\x9b1m\\u202e [/bold] [red]") == 5
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        (
            "behind: dagster-ckpt doctor shop --repair",
            "behind: dagster-ckpt doctor --base '/a b' shop --repair",
        ),
        ("give dagster-ckpt itself to pip", "give dagster-ckpt itself to pip"),
        ("keep the rows (roll_back_tables: false)", "keep the rows (--keep-rows)"),
        ("the rows of it (keep_rows_of: [lines])", "the rows of it (--keep-rows-of lines)"),
        ("drop it with allow_non_restored_state = true", "drop it with --allow-non-restored-state"),
        ("say so (allow_missing_files)", "say so (--allow-missing-files)"),
        ("choose another with restore_from, or begin anew", "choose another with restore, or begin anew"),
        ("begin without state (restore_from: none)", "begin without state (restore none)"),
        ("restore_from 'lates': did you mean 'latest'?", "SNAPSHOT 'lates': did you mean 'latest'?"),
    ],
)
def test_a_sentence_names_options_of_this_program_and_its_commands_find_the_same_deployment(
    said: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Output(as_json=False, places="--base '/a b'").say(said)
    assert capsys.readouterr().out == f"{printed}\n"
