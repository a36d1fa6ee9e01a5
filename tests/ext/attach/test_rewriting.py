"""A plain program with our decorators: its stages make the frames that it makes, or a sentence says why not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pyspark.sql
import pytest

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.attach.rewriting import AdoptedProgram, adopted_program

SESSION = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.appName('a').getOrCreate()\n"
READ = "df = spark.readStream.schema('id INT').json('/in')\n"


def started(frame: str, name: str) -> str:
    return f"{frame}.writeStream.queryName('{name}').option('checkpointLocation', '/cp/{name}').start('/out/{name}')\n"


START = started("df", "copy")


class Recorded:
    """Stands for a session and all that comes of it: it is what was called on it."""

    def __init__(self, text: str, written: list[str]) -> None:
        self.text, self.written = text, written

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "writeStream":
            self.written.append(self.text)
        if name == "getOrCreate":
            return lambda: Recorded("session", self.written)
        return Recorded(f"{self.text}.{name}", self.written)

    def __call__(self, *args: object, **named: object) -> Recorded:
        given = [repr(one) for one in args] + [f"{name}={value!r}" for name, value in named.items()]
        return Recorded(f"{self.text}({', '.join(given)})", self.written)

    def __repr__(self) -> str:
        return self.text


def adopted(folder: Path, text: str) -> AdoptedProgram:
    (folder / "job.py").write_text(text)
    return adopted_program(folder / "job.py", pipeline="job")


FLAT = SESSION + READ + "df = df.where('id > 1')\n" + started("df", "copy")
BODY = """
spark = (SparkSession.builder
         .appName("a").config("spark.sql.shuffle.partitions", 2).getOrCreate())
spark.conf.set("spark.sql.session.timeZone", "UTC")
df = spark.readStream.json(IN)
query = (
    df.where('id > 1')  # a comment
    .writeStream.option("checkpointLocation", CP + "/copy").trigger(availableNow=True)
    .outputMode("append").start(path=f"{CP}/out"))
query.awaitTermination()
"""
HEAD = "from pyspark.sql import SparkSession\nIN = '/in'\nCP = '/cp'\n"
SHAPES = {
    "flat": FLAT,
    "guarded": f"{HEAD}if __name__ == '__main__':{indent(BODY, '    ')}",
    "in main": f"{HEAD}def main():{indent(BODY, '    ')}\nif __name__ == '__main__':\n    main()\n",
    "session of another name": FLAT.replace("spark = ", "session = ").replace("spark.read", "session.read"),
    "names that change between queries": SESSION
    + "key = 'a'\nschema = []\nschema.append(key)\n"
    + "df = spark.readStream.schema(str(schema)).json('/in')\n"
    + started("df", "one")
    + "key = 'b'\nschema.append(key)\ndf = spark.readStream.schema(str(schema)).json('/in')\n"
    + started("df.select('id')", "two"),
    "one source for two": SESSION + READ + started("df", "one") + started("df.distinct()", "two"),
    "views and functions by name": SESSION
    + "def f(x):\n    return x + LATER\n"
    + "spark.udf.register('f', f.__name__)\nLATER = 1\n"
    + READ
    + "df.createOrReplaceTempView('v')\n"
    + started("spark.sql('select f(id) from v')", "copy"),
    "columns in a loop": SESSION
    + READ
    + "for name in ('a', 'b'):\n    df = df.withColumn(name, name + '''x\n  y''')\n"
    + START
    + "spark.streams.awaitAnyTermination()\n",
    "helpers": SESSION
    + "def clean(frame, spark=None):\n    return frame.dropDuplicates(['id'])\n"
    + READ
    + "\ndef joined(frame):\n    return frame.join(spark.read.json('/static'), 'id')\n"
    + started("joined(clean(df))", "copy"),
    "a name that Python has": SESSION + READ + started("df", "sum"),
    "two on a line": SESSION + READ + "a = 1; df = df.limit(a)\n" + START,
    "changed by a function": SESSION
    + "import os\nos.getpid()\nschema = []\nprint(schema)\n(lambda x: x.append('id'))(schema)\n"
    + "more = schema.append(os.sep)\ndf = spark.readStream.schema(str(schema)).json('/in')\n"
    + START,
    "waiting for a key": SESSION
    + READ
    + f"q = {START}try:\n    q.awaitTermination()\nexcept KeyboardInterrupt:\n    spark.stop()\n",
}


@pytest.mark.quick
@pytest.mark.parametrize("shape", SHAPES)
def test_stages_make_the_frames_that_the_program_makes(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(pyspark.sql.SparkSession, "builder", Recorded("builder", written))
    exec(compile(SHAPES[shape], "job.py", "exec"), {"__name__": "__main__"})
    made = adopted(tmp_path, SHAPES[shape])
    assert made.refusals == []
    names: dict[str, Any] = {"__name__": "job"}
    exec(compile(made.program, "job.py", "exec"), names)
    stages = names["pipeline"].stages.values()
    frames = [one.fn(Recorded("session", written)).text for one in stages if not one.inputs]
    before = list(written)
    assert sorted(frames) == sorted(before)
    assert [one for one in made.diff.splitlines() if one.startswith("-")], "a diff of the program"
    places = [word.partition("=") for word in made.takes_over.split()[3:]]
    assert {uid for uid, *_ in places} == {str(one.uid) for one in stages if not one.inputs}
    assert {place for *_, place in places} <= {f"/cp/{name}" for name in ("copy", "one", "two", "sum")}


REFUSED = {
    "foreachBatch": (
        READ + "df.writeStream.foreachBatch(print).start()\n",
        "where the function of foreachBatch",
    ),
    "console": (READ + "df.writeStream.format('console').start()\n", "console keeps is no table"),
    "no place": (READ + "df.writeStream.start('/out')\n", "no checkpointLocation"),
    "complete": (READ + START.replace(".start", ".outputMode('complete').start"), "need a sink with a key"),
    "continuous": (READ + START.replace(".start", ".trigger(continuous='1 s').start"), "writer has trigger"),
    "an option that is computed": (
        READ + START.replace("'/cp/copy'", "place()"),
        "checkpointLocation is computed",
    ),
    "a name that is computed": (READ + START.replace("'copy'", "'a' + str(1)"), "queryName is computed"),
    "a loop": (READ + f"for one in 'ab':\n    {START}", "starts in a loop"),
    "a function": (READ + f"def go():\n    return {START}go()\ngo()\n", "or a function"),
    "a writer in a variable": (
        READ + "w = df.writeStream.format('delta')\nw.start('/out')\n",
        "kept in a variable",
    ),
    "arguments": (f"import sys\ndf = spark.readStream.json(sys.argv[1])\n{START}", "program's arguments"),
    "a socket": (f"df = spark.readStream.format('socket').load()\n{START}", "a socket cannot be read again"),
    "what another one writes": (
        READ + START + "copied = spark.readStream.json('file:/out/copy/')\n" + started("copied", "two"),
        "reads what a query of the program writes (file:/out/copy/)",
    ),
    "what may be another one's": (
        READ + START + "more = spark.readStream.json(place())\n" + started("more", "two"),
        "computes what it reads",
    ),
    "one name twice": (READ + START + START, "another query is called 'copy'"),
    "no stream": (f"df = rows()\n{START}", "no `readStream` leads to it"),
}


@pytest.mark.quick
@pytest.mark.parametrize("case", REFUSED)
def test_a_query_that_it_cannot_have_is_named(case: str, tmp_path: Path) -> None:
    text, sentence = REFUSED[case]
    made = adopted(tmp_path, SESSION + text)
    assert len(made.refusals) == 1, made.refusals
    assert sentence in made.refusals[0]
    assert "the query of line " in made.refusals[0]
    assert bool(made.program) is (
        case in ("what another one writes", "what may be another one's", "one name twice")
    )


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("print(1)", "starts no streaming query"),
        ("def", "is no program in Python"),
        (f"{SESSION}{READ}def f():\n    global df\n{START}", "line 5 of"),
        (f"{SESSION}spark = spark.newSession()\n{READ}{START}", "once, makes its session"),
        (f"spark = helper()\n{READ}{START}", "once, makes its session"),
        (SESSION.replace("('a')", "(name())") + READ + START, "`appName` of the session"),
        (f"{SESSION}{READ}{START}spark.conf.set('a', 'b')\n{START}", "line 5 changes the session"),
        (f"{SESSION}spark.sql('SET a=b')\n{READ}{START}", "line 3 changes the session"),
        (
            f"{SESSION}from x import pipeline\n{READ.replace(')', ', pipeline())', 1)}{START}",
            "two meanings of pipeline",
        ),
    ],
)
def test_a_program_that_it_cannot_read_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(sentence)):
        adopted(tmp_path, text)


USUAL = """
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
orders = spark.readStream.schema("at TIMESTAMP, customer STRING, amount INT").json("in")
totals = (
    orders.withWatermark("at", "10 minutes")
    .groupBy(F.window("at", "5 minutes"), "customer")
    .agg(F.sum("amount").alias("amount"))
)
query = (
    totals.writeStream.format("parquet")
    .queryName("totals")
    .option("checkpointLocation", "cp/totals")
    .trigger(availableNow=True)
    .start("out/totals")
)
query.awaitTermination()
"""
GOES_ON = """
import job
from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource, load_table, run_epoch

where = CheckpointCoordinatorResource(base_dir="ckpt")
run = dict(coordinator=where, spark=SparkSessionResource(master="local[2]"))
run_epoch(job.pipeline, restore={"restore_from": "savepoint-1", "allow_missing_files": True}, **run)
run_epoch(job.pipeline, **run)
rows = load_table(job.pipeline, "totals_table", coordinator=where).to_arrow().to_pylist()
print("rows", [(row["customer"], row["amount"]) for row in rows])
"""


def put(folder: Path, name: str, at: str, amount: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text(f'{{"at": "2026-01-01T{at}", "customer": "ann", "amount": {amount}}}\n')


@pytest.mark.spark
def test_the_program_goes_on_where_the_plain_one_stopped_and_reads_nothing_again(tmp_path: Path) -> None:
    def ran(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    cli = ("-m", "dagster_ckpt.cli")
    (tmp_path / "job.py").write_text(USUAL)
    put(tmp_path, "1.json", "00:01:00", 5)
    ran("job.py")
    told = json.loads(ran(*cli, "adopt", "job.py", "--base", "ckpt", "--json"))
    ran(*cli, *told["takes_over"].split()[1:], "--base", "ckpt")
    (tmp_path / "in/1.json").unlink()  # what was read is not there to be read again
    (tmp_path / "patch").write_text(told["diff"])
    subprocess.run(["patch", "-p0", "-i", "patch"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "job.py").read_text() == told["program"]
    assert "job: can start" in ran(*cli, "check", "-f", "job.py")
    put(tmp_path, "2.json", "00:02:00", 7)
    put(tmp_path, "3.json", "03:00:00", 9)  # closes the window
    assert "rows [('ann', 12)]" in ran("-c", GOES_ON)
