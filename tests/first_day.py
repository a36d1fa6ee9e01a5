"""The 23 mistakes of a first day, each made in a folder of its own and told by the program that a newcomer types.

``python -m tests.first_day [name ...]`` prints what each says, in how many lines and after how many seconds of
processor time. ``tests/test_first_day.py`` asks the same at night.
"""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tests.root import ROOT

MOST_LINES = 15
MOST_SECONDS = 5.0
"""Of processor time, for what needs no data: a busy machine makes any program late."""
CHECK = "dagster-ckpt check -f first_day.py"
LAUNCH = "dg launch --job first_day -f first_day.py"
CODE = """
from pathlib import Path

from pyspark.sql import functions as f

from dagster_ckpt import *
from dagster_ckpt.sinks import IcebergTable

HERE = Path(__file__).resolve().parent
{more}

@spark_source
def rows(spark):
    {read}


@spark_sink{sink}
def table(rows):
    return {rows}


@checkpointed_pipeline{pipeline}
def first_day():
    table(rows())


coordinator = CheckpointCoordinatorResource(base_dir=str(HERE / "lab"){where})
defs = build_pipeline_definitions(first_day, coordinator=coordinator)
"""
INSTANCE = "telemetry: {enabled: false}\nnux: {enabled: false}\npython_logs: {python_log_level: INFO}\n"
"""As the tutorial's."""
READ = 'return spark.readStream.schema("id INT, name STRING").json(str(HERE / "in"))'
FAILING = "def rate(number):\n    return 1 // (number - 1)\n"
NO_PACKAGE = "import sys\n\nsys.modules['pyiceberg'] = None\n"


def nothing(folder: Path) -> None:
    """Leave the folder as it is."""


def one_more_file(folder: Path) -> None:
    (folder / "in" / "2.json").write_text('{"id": 2, "name": "b"}\n')


def corrupt(folder: Path) -> None:
    (folder / "in" / "1.json").write_text('{"id": 1, "name": \n}}')


def storage_gone(folder: Path) -> None:
    """Unmount the disk of the checkpoints."""
    one_more_file(folder)
    (folder / "lab" / "checkpoints").rename(folder / "elsewhere")
    (folder / "lab" / "checkpoints").write_text("")


def no_package(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(NO_PACKAGE)


@dataclass(frozen=True)
class Mistake:
    """One mistake: what is different from code that runs, what is typed, and what it has to say."""

    says: str
    parts: Mapping[str, str] = field(default_factory=dict)
    types: str = LAUNCH
    prepare: Callable[[Path], None] = nothing
    after: Mapping[str, str] | None = None
    """Parts of the code that runs before."""
    is_told: bool = False
    """The run succeeds: it may be meant."""
    variables: Mapping[str, str] = field(default_factory=dict)


KEYED: dict[str, str] = {"sink": "(key=['name'])", "rows": "rows.groupBy('name').count()"}
MISTAKES = {
    "wrong key": Mistake("no column ident: there are id, name", {"sink": "(key=['ident'])"}),
    "missing column": Mistake("name `idd` cannot be resolved. Did you mean", {"rows": "rows.select('idd')"}),
    "aggregation into append": Mistake("key=", {"rows": "rows.groupBy('name').count()"}),
    "wrong path": Mistake("/inn", {"read": READ.replace('"in"', '"inn"')}),
    "no Java": Mistake(
        r"needs Java 17 or newer, and JAVA_HOME \(/no/java\) has none: install",
        {},
        CHECK,
        variables={"JAVA_HOME": "/no/java"},
    ),
    "unsupported type": Mistake(
        "months", {"rows": "rows.selectExpr('id', \"INTERVAL '1' MONTH AS months\")"}
    ),
    "misspelt setting": Mistake("did you mean `checkpointing`?", {"pipeline": "(checkpoint={})"}, CHECK),
    "wrong restore_from": Mistake(
        "did you mean 'latest'?",
        {},
        LAUNCH + """ --config-json '{"ops": {"restore": {"config": {"restore_from": "latst"}}}}'""",
    ),
    "two of one name": Mistake(
        "need different names",
        {
            "more": "def two(one):\n    twin = one.fork('other', table_dir='/t')\n"
            "    object.__setattr__(twin, 'name', one.name)\n    return one, twin\n",
            "where": ")\nbuild_pipeline_definitions(*two(first_day)",
        },
        CHECK,
    ),
    "wrong store URL": Mistake(
        "the store's URL cannot be read: write sqlite", {"where": ", store_url='postgres//h/db'"}, CHECK
    ),
    "wrong password": Mistake(
        "correct user, password or database of its URL", {"where": ", store_url='{postgres}'"}, CHECK
    ),
    "missing extra": Mistake(
        "an Iceberg table needs the extra 'iceberg': pip install 'pyiceberg",
        {"sink": "(to=IcebergTable('t'))"},
        CHECK,
        no_package,
    ),
    "failing user function": Mistake(
        r"in rate, `return 1 // \(number - 1\)`: ZeroDivisionError",
        {"more": FAILING, "rows": "rows.select(f.udf(rate, 'int')('id').alias('rate'))"},
    ),
    "schema mismatch": Mistake(
        r"\bid\b", {"rows": "rows.selectExpr('id + 0.5 AS id', 'name')"}, prepare=one_more_file, after={}
    ),
    "rand() in a key": Mistake(
        "drawn by chance",
        {"sink": "(key=['k'])", "rows": "rows.selectExpr('uuid() AS k', 'id')"},
        is_told=True,
    ),
    "output mode": Mistake("no key: rows that change need key=", {"sink": "(output_mode='update')"}, CHECK),
    "unwritable folder": Mistake(
        "the folder /dev/null/x cannot be made", {"where": ", work_dir='/dev/null/x'"}, CHECK
    ),
    "corrupt JSON": Mistake(
        r"1\.json", {"read": READ.replace(".json(", ".option('mode', 'FAILFAST').json(")}, prepare=corrupt
    ),
    "changed aggregation": Mistake(
        "changed|state",
        {"sink": "(key=['id'])", "rows": "rows.groupBy('id').count()"},
        prepare=one_more_file,
        after=KEYED,
    ),
    "renamed stage": Mistake(
        "previous_uids",
        {**KEYED, "sink": "(key=['name'], uid='renamed')"},
        prepare=one_more_file,
        after=KEYED,
    ),
    "spark.read in a source": Mistake(
        "use spark.readStream in a source", {"read": READ.replace("readStream", "read")}
    ),
    "forgotten return": Mistake(
        "returns nothing: end it with `return`", {"read": READ.removeprefix("return ")}, CHECK
    ),
    "storage gone": Mistake("cannot be written, because", KEYED, prepare=storage_gone, after=KEYED),
    "corrupt JSON where nobody is strict": Mistake("row 1 of", prepare=corrupt, is_told=True),
}


@dataclass(frozen=True)
class Told:
    """What a terminal has shown."""

    lines: list[str]
    code: int
    seconds: float
    sentence: str
    times: int

    def is_right(self, mistake: Mistake) -> bool:
        """Tell whether it is one sentence in few lines, and soon where no data is needed."""
        return (
            self.times == 1
            and len(self.lines) <= MOST_LINES
            and (self.code == 0) == mistake.is_told
            and (mistake.types != CHECK or self.seconds <= MOST_SECONDS)
        )


def made(mistake: Mistake, folder: Path) -> Told:
    """Make the mistake in an empty folder and return what is told of it."""
    (folder / "in").mkdir()
    (folder / "home").mkdir()
    (folder / "home" / "dagster.yaml").write_text(INSTANCE)
    (folder / "in" / "1.json").write_text('{"id": 1, "name": "a"}\n')
    with refusing_postgres() if "{postgres}" in str(mistake.parts) else nullcontext("") as url:
        if mistake.after is not None:
            write(folder, mistake.after)
            ran = typed(folder, LAUNCH, {})
            assert ran.returncode == 0, ran.stdout
        mistake.prepare(folder)
        write(folder, mistake.parts, url)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        shown = typed(folder, mistake.types, mistake.variables)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = shown.stdout.splitlines()
    found = [line for line in lines if re.search(mistake.says, line)]
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Told(lines, shown.returncode, seconds, found[-1] if found else "", len(found))


def write(folder: Path, parts: Mapping[str, str], url: str = "") -> None:
    empty = dict.fromkeys(("more", "sink", "pipeline", "where"), "")
    given = {name: part.replace("{postgres}", url) for name, part in parts.items()}
    (folder / "first_day.py").write_text(CODE.format(**{**empty, "read": READ, "rows": "rows", **given}))


def typed(folder: Path, command: str, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Type a command in a terminal of 80 columns."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "PYTEST_"))}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={
            **bare,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{bare['PATH']}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
            "PYTHONWARNINGS": "ignore",
            "DAGSTER_HOME": str(folder / "home"),
            "COLUMNS": "80",
            **variables,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@contextmanager
def refusing_postgres() -> Iterator[str]:
    """Yield the URL of a server that answers as PostgreSQL does to a wrong password."""

    def serve() -> None:
        refusal = b'SFATAL\0C28P01\0Mpassword authentication failed for user "shop"\0\0'
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                if client.recv(8)[4:] == (80877103).to_bytes(4, "big"):  # may it be encrypted?
                    client.sendall(b"N")
                    client.recv(4096)
                client.sendall(b"E" + (len(refusal) + 4).to_bytes(4, "big") + refusal)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"postgresql://shop:wrong@127.0.0.1:{server.getsockname()[1]}/shop"


def main(names: list[str]) -> int:
    """Print the table; 0 when at most one is not right."""
    asked, wrong = names or list(MISTAKES), 0
    print("mistake | typed | lines | processor s | said", flush=True)
    for name in asked:
        mistake = MISTAKES[name]
        with tempfile.TemporaryDirectory() as folder:
            told = made(mistake, Path(folder))
            said = told.sentence.replace(folder, "").strip()
        mark = "" if told.is_right(mistake) else "WRONG "
        row = (
            f"{mark}{name}",
            mistake.types.split(" -")[0],
            str(len(told.lines)),
            f"{told.seconds:.1f}",
            said,
        )
        print(" | ".join(row), flush=True)
        if mark:
            wrong += 1
            print(*(f"    {line}" for line in told.lines[:60]), f"    exit code {told.code}", sep="\n")
    print(f"{len(asked) - wrong} of {len(asked)} (load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores)")
    return wrong > 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
