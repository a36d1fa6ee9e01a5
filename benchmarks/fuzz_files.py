"""Changes files that are read from storage, at random: each is read, or is ``Corrupt`` in a sentence, and nothing else.

    python -m benchmarks.fuzz_files [--files 100000] [--seed 0] [--processes 2] [--kind NAME]

Whole files of every kind are in ``tests/spark/stored_files.py``. Reading one may take 10 s and 200 MB beyond what the
process has anyway; a process that ends of it is a finding too. Ends with 1 where there was one; ``--kind`` and
``--seed`` with ``--files 1`` read one file again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from tests.spark.stored_files import stored_files, tried

SECONDS, MEGABYTES = 10, 200
_AT_ONCE = 500


def main() -> int:
    arguments = _arguments()
    kinds = [arguments.kind] if arguments.kind else list(stored_files())
    began = time.monotonic()
    findings = read = 0
    jobs = _jobs(kinds, arguments.seed, arguments.files)
    running: dict[multiprocessing.Process, Connection] = {}
    while True:
        while len(running) < arguments.processes and (job := next(jobs, None)) is not None:
            process, answers = _start(job)
            running[process] = answers
        if not running:
            break
        ended = next((one for one in running if running[one].poll(0.1) or not one.is_alive()), None)
        if ended is None:
            continue
        for told in _heard(ended, running.pop(ended)):
            findings += 1
            print(told, flush=True)
        read += _AT_ONCE
        if read % (20 * _AT_ONCE) == 0:
            print(f"{read} files, {findings} findings, {time.monotonic() - began:.0f} s", flush=True)
    print(
        f"{arguments.files} files of {len(kinds)} kinds, {findings} findings, {time.monotonic() - began:.0f} s"
    )
    return 1 if findings else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--kind", default="")
    return parser.parse_args()


Job = list[tuple[str, str]]


def _jobs(kinds: list[str], seed: int, files: int) -> Iterator[Job]:
    trials = [(kinds[number % len(kinds)], str(seed + number // len(kinds))) for number in range(files)]
    for start in range(0, files, _AT_ONCE):
        yield trials[start : start + _AT_ONCE]


def _start(job: Job) -> tuple[multiprocessing.Process, Connection]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_read_all, args=(job, theirs))
    process.start()
    theirs.close()
    return process, ours


def _heard(process: multiprocessing.Process, answers: Connection) -> Iterator[str]:
    """Yield what was wrong; the last file that a process which ended had begun is wrong too."""
    begun = ""
    try:
        while (said := answers.recv()) is not None:
            begun, told = said
            if told:
                yield f"{begun}: {told}"
    except EOFError:
        process.join()
        yield f"{begun}: the process ended, with {process.exitcode}"
    process.join()


def _read_all(job: Job, answers: Connection) -> None:
    for kind, (read, whole) in stored_files().items():  # everything is imported before memory is counted
        with tempfile.TemporaryDirectory() as folder:
            read(Path(folder), whole)
        del kind
    signal.signal(signal.SIGALRM, _too_long)
    with Path("/proc/self/statm").open() as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEGABYTES * 1024 * 1024,) * 2)
    with tempfile.TemporaryDirectory() as folder:
        for kind, seed in job:
            answers.send((f"--kind {kind!r} --seed {seed}", ""))
            signal.alarm(SECONDS)
            try:
                told = tried(kind, seed, Path(folder))
            except TimeoutError as error:
                told = str(error)
            signal.alarm(0)
            if told:
                answers.send((f"--kind {kind!r} --seed {seed}", told))
    answers.send(None)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"it was not read within {SECONDS} s")


if __name__ == "__main__":
    sys.exit(main())
