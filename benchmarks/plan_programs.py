"""Programs and edits of ``plan_verdicts``: a pipeline for every stateful operator, and what people change in one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_SOURCE = """
@spark_source
def {uid}(spark):
    columns = "k LONG, v LONG, w LONG, at LONG, was LONG, p LONG"
    reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
    return reader.parquet(FOLDER + "/{folder}")
"""
_CLEAN = """
@spark_stage
def clean(web):
    rows = web.where("v > 0").selectExpr("k AS k", "v AS v", "w AS w", "at", "was", "p")
    return rows.withColumn("t", f.expr("timestamp_seconds(at)"))
"""
_DECLARED = """
@checkpointed_pipeline(name="{name}")
def pipeline():
    rows = {rows}
    {more}out(rows)
"""
_JOINED = """
@spark_sink(key=[])
def out(web, shop):
    left = web.where("v > 0").selectExpr("k AS k", "v AS v", "w AS w", "p", "timestamp_seconds(at) AS t")
    right = shop.selectExpr("k AS k", "v AS v", "w AS w", "timestamp_seconds(at) AS t")
    left, right = left.withWatermark("t", "5 seconds"), right.withWatermark("t", "5 seconds")
    near = "l.k = r.k AND l.t BETWEEN r.t - INTERVAL 8 SECONDS AND r.t + INTERVAL 8 SECONDS"
    pairs = left.alias("l").join(right.alias("r"), f.expr(near), "{how}")
    return pairs.selectExpr("l.k AS k", "l.v AS a", "r.v AS b").where("a > 0")

@checkpointed_pipeline(name="{how}")
def pipeline():
    out(web(), shop())
"""
_PANDAS = """
def updated(key, frames, state):
    import pandas as pd

    count, total = state.get if state.exists else (0, 0)
    for frame in frames:
        for v, p in zip(frame["v"].tolist(), frame["p"].tolist()):
            count, total = count + 1, total + (v + 0)
    state.update((count, total))
    yield pd.DataFrame({"k": [key[0]], "a": [count], "b": [total]})

@spark_sink(key=["k"], output_mode="update")
def out(clean):
    groups = clean.groupBy("k")
    kept = "count LONG, total LONG"
    return groups.applyInPandasWithState(updated, "k LONG, a LONG, b LONG", kept, "update", "NoTimeout").where("a > 0")
"""
_PROCESSOR = """
from pyspark.sql.streaming import StatefulProcessor

class Totals(StatefulProcessor):
    def init(self, handle):
        self.count = handle.getValueState("count", "n LONG")
        self.total = handle.getValueState("total", "n LONG")

    def handleInputRows(self, key, frames, timers):
        import pandas as pd

        count = self.count.get()[0] if self.count.exists() else 0
        total = self.total.get()[0] if self.total.exists() else 0
        for frame in frames:
            for v, p in zip(frame["v"].tolist(), frame["p"].tolist()):
                count, total = count + 1, total + (v + 0)
        self.count.update((count,))
        self.total.update((total,))
        yield pd.DataFrame({"k": [key[0]], "a": [count], "b": [total]})

    def close(self):
        pass

@spark_sink(key=["k"], output_mode="update")
def out(clean):
    columns = "k LONG, a LONG, b LONG"
    return clean.groupBy("k").transformWithStateInPandas(Totals(), columns, "Update", "None").where("a > 0")
"""


def _sink(body: str, settings: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return f"\n@spark_sink({settings or 'key=[]'})\ndef out(clean):\n{lines}"


_AGGREGATES = 'agg(f.sum("v").alias("a"), f.count("w").alias("b"), f.max("w").alias("c"))'
_SINKS = {
    "stateless": """
places = clean.selectExpr("k", "v AS a", "w + 1 AS b").where("a > 0")
return places
""",
    "aggregation": f'return clean.groupBy("k").{_AGGREGATES}.where("a > 0")',
    "window": f"""
rows = clean.withWatermark("t", "5 seconds").groupBy(f.window("t", "10 seconds"), "k").{_AGGREGATES}
return rows.selectExpr("CAST(window.start AS LONG) AS start", "k", "a", "b", "c").where("a > 0")
""",
    "session": f"""
rows = clean.withWatermark("t", "5 seconds").groupBy(f.session_window("t", "5 seconds"), "k").{_AGGREGATES}
return rows.selectExpr("CAST(session_window.start AS LONG) AS start", "k", "a", "b", "c").where("a > 0")
""",
    "duplicates": """
rows = clean.dropDuplicates(["k", "v"])
return rows.selectExpr("k", "v AS a", "w AS b").where("a > 0")
""",
    "within": """
rows = clean.withWatermark("t", "5 seconds").dropDuplicatesWithinWatermark(["k", "v"])
return rows.selectExpr("k", "v AS a", "w AS b").where("a > 0")
""",
    "two operators": f"""
rows = clean.withWatermark("t", "5 seconds").dropDuplicates(["k", "v", "t"])
rows = rows.groupBy(f.window("t", "10 seconds"), "k").{_AGGREGATES}
return rows.selectExpr("CAST(window.start AS LONG) AS start", "k", "a", "b", "c").where("a > 0")
""",
    "branches": """
small = clean.where("w < 250").groupBy("k").agg(f.count("v").alias("a"))
large = clean.where("w >= 250").groupBy("k").agg(f.count("v").alias("a"))
return small.withColumn("b", f.lit(0)).unionByName(large.withColumn("b", f.lit(1))).where("a > 0")
""",
    "first": """
rows = clean.withColumn("w", f.expr("CASE WHEN p > 1 THEN w END"))
return rows.groupBy("k").agg(f.count("v").alias("a"), f.first("w").alias("b")).where("a > 0")
""",
}
_KEYED = 'key=["k"], output_mode="update"'
_SETTINGS = {
    "aggregation": _KEYED,
    "first": _KEYED,
    "branches": _KEYED.replace('"k"', '"k", "b"'),
}
_CHANNEL = """
@spark_stage(chain=False)
def once(clean):
    return clean.dropDuplicates(["k", "v"])
"""
_UNION = """
@spark_stage
def both(web, shop):
    return web.where("v > 0").select("k", "v", "w", "p").union(shop.select("k", "v", "w", "p"))
"""


def _programs() -> Iterator[tuple[str, str]]:
    web, shop = _SOURCE.format(uid="web", folder="a"), _SOURCE.format(uid="shop", folder="b")

    def whole(name: str, *parts: str, rows: str = "clean(web())", more: str = "") -> tuple[str, str]:
        name = name.replace(" ", "_")
        return name, "".join((*parts, _DECLARED.format(name=name, rows=rows, more=more)))

    for name, body in _SINKS.items():
        yield whole(name, web, _CLEAN, _sink(body, _SETTINGS.get(name, "")))
    yield whole("pandas", web, _CLEAN, _PANDAS)
    yield whole("processor", web, _CLEAN, _PROCESSOR)
    yield whole(
        "channel", web, _CLEAN, _CHANNEL, _sink(_SINKS["aggregation"], _KEYED), more="rows = once(rows)\n    "
    )
    yield whole("union", web, shop, _UNION, _sink(_SINKS["aggregation"], _KEYED), rows="both(web(), shop())")
    for how in ("inner", "left_outer"):
        yield how, web + shop + _JOINED.format(how=how)


PROGRAMS = dict(_programs())


@dataclass(frozen=True, slots=True)
class Edit:
    """Edit of every program that has its text."""

    name: str
    old: str
    new: str
    in_one: str = ""
    """Both texts in one program: the old one for rows of the first file, where rows are changed before they become
    state.
    """
    is_compared: bool = True
    """False: only whether a run goes on, where another table, or none of the old state, is what was asked for."""


def _in_rows(name: str, old: str, new: str, quoted: str = '"{}"') -> Edit:
    """Edit of an expression of SQL on rows before they become state."""
    in_one = f"CASE WHEN p = 1 THEN {old} ELSE {new} END"
    return Edit(name, quoted.format(old), quoted.format(new), quoted.format(in_one))


_COLUMNS = '"{} AS v"'
_SUM, _COUNT = 'f.sum("v").alias("a")', 'f.count("w").alias("b")'
_WEB, _SHOP = 'web.where("v > 0").select("k", "v", "w", "p")', 'shop.select("k", "v", "w", "p")'
_VARIABLES = """self.count = handle.getValueState("count", "n LONG")
        self.total = handle.getValueState("total", "n LONG")"""
_SMALL, _LARGE = 'small.withColumn("b", f.lit(0))', 'large.withColumn("b", f.lit(1))'
EDITS = (
    # harmless
    Edit("nothing", "pipeline", "pipeline"),
    Edit("a comment", "    rows = ", "    # rows that count\n    rows = "),
    Edit("a docstring", "def out(clean):\n", 'def out(clean):\n    """Rows to show."""\n'),
    Edit("another name of a variable", "rows", "lines"),
    Edit("another pace", '"maxFilesPerTrigger", 1', '"maxFilesPerTrigger", 2'),
    Edit(
        "a sink more", "    out(rows)", "    out(rows)\n    spark_sink(uid='too')(lambda clean: clean)(rows)"
    ),
    # rows before they become state
    _in_rows("a filter that lets less through", "v > 0", "v > 12"),
    _in_rows("a filter that lets more through", "v > 0", "v > -10"),
    Edit(
        "a filter less",
        'where("v > 0")',
        'where("true")',
        'where("CASE WHEN p = 1 THEN v > 0 ELSE true END")',
    ),
    _in_rows("another value", "v", "v + 1", _COLUMNS),
    _in_rows("a value by another function", "v", "abs(v)", _COLUMNS),
    Edit("the same value written in another way", '"v AS v"', '"(v + 1) - 1 AS v"'),
    Edit("another key value", '"k AS k"', '"k % 2 AS k"', '"CASE WHEN p = 1 THEN k ELSE k % 2 END AS k"'),
    Edit("another column under the same name", '"v AS v"', '"w AS v"'),
    Edit(
        "two columns swapped",
        '"v AS v", "w AS w"',
        '"w AS v", "v AS w"',
        '"CASE WHEN p = 1 THEN v ELSE w END AS v", "CASE WHEN p = 1 THEN w ELSE v END AS w"',
    ),
    Edit("columns in another order", '"k AS k", "v AS v"', '"v AS v", "k AS k"'),
    Edit("a column more in rows", '"w AS w"', '"w AS w", "v + w AS z"'),
    Edit(
        "a value that may be missing",
        '"v AS v"',
        '"nullif(v, 11) AS v"',
        '"CASE WHEN p = 1 THEN v ELSE nullif(v, 11) END AS v"',
    ),
    Edit(
        "a key that may be missing",
        '"k AS k"',
        '"nullif(k, 2) AS k"',
        '"CASE WHEN p = 1 THEN k ELSE nullif(k, 2) END AS k"',
    ),
    Edit("the same filter in other words", '"v > 0"', '"NOT (v <= 0)"'),
    Edit("a sum of twice the column", 'f.sum("v")', 'f.sum(f.col("v") * 2)'),
    Edit("another type of a value", '"v AS v"', '"CAST(v AS INT) AS v"'),
    Edit("a value that is a fraction", '"v AS v"', '"CAST(v AS DOUBLE) AS v"'),
    Edit("another type of a key", '"k AS k"', '"CAST(k AS STRING) AS k"'),
    Edit("another body of a function", "(v + 0)", "(2 * v)", "(v if p == 1 else 2 * v)"),
    Edit("the same body in other words", "(v + 0)", "(0 + v)"),
    # results
    Edit("a filter behind", 'where("a > 0")', 'where("a > 40")'),
    Edit("no filter behind", '.where("a > 0")', ""),
    Edit("a result more", '.where("a > 0")', '.where("a > 0").withColumn("d", f.expr("a + b"))'),
    Edit("another name of a result", '.where("a > 0")', '.where("a > 0").withColumnRenamed("b", "d")'),
    Edit("a result less", '.where("a > 0")', '.where("a > 0").drop("b")'),
    Edit("results swapped", '.where("a > 0")', '.where("a > 0").selectExpr("k", "b AS a", "a AS b")'),
    Edit(
        "another type of a result",
        '.where("a > 0")',
        '.where("a > 0").withColumn("a", f.expr("CAST(a AS STRING)"))',
    ),
    Edit("results computed", '.where("a > 0")', '.where("a > 0").withColumn("b", f.expr("a * 2 + b"))'),
    # aggregates
    Edit("min for max", 'f.max("w")', 'f.min("w")'),
    Edit("a sum of another column", 'f.sum("v")', 'f.sum("w")'),
    Edit("an average for a sum", 'f.sum("v")', 'f.avg("v")'),
    Edit("aggregates in another order", f"{_SUM}, {_COUNT}", f"{_COUNT}, {_SUM}"),
    Edit("aggregates swapped", f"{_SUM}, {_COUNT}", 'f.count("w").alias("a"), f.sum("v").alias("b")'),
    Edit("an aggregate more", 'f.max("w").alias("c")', 'f.max("w").alias("c"), f.min("v").alias("d")'),
    Edit("an aggregate less", ', f.max("w").alias("c")', ', f.lit(1).alias("c")'),
    Edit("a first value that is not null", 'f.first("w")', 'f.first("w", ignorenulls=True)'),
    Edit("a count of all rows", 'f.count("w")', 'f.count("*")'),
    Edit("a count of another column", 'f.count("w")', 'f.count("v")'),
    Edit("a sum with a filter", 'f.sum("v")', 'f.expr("sum(v) FILTER (WHERE w < 250)")'),
    Edit("a sum of an expression", 'f.sum("v")', 'f.sum(f.expr("v + 1"))'),
    Edit("a sum of a product", 'f.sum("v")', 'f.sum(f.expr("v * w"))'),
    Edit("the same name in capitals", 'f.sum("v")', 'f.sum("V")'),
    Edit("a sum in the words of SQL", 'f.sum("v")', 'f.expr("sum(v)")'),
    # groups and keys
    Edit("a key more", 'groupBy("k")', 'groupBy("k", "p")'),
    Edit("a key more in windows", '"), "k")', '"), "k", "p")'),
    Edit("another key", 'groupBy("k")', 'groupBy((f.col("v") % 3).alias("k"))'),
    Edit("a key under another name", 'groupBy("k")', 'groupBy(f.col("k").alias("K"))'),
    Edit("a key fewer of duplicates", '["k", "v"]', '["k"]'),
    Edit("keys of duplicates in another order", '["k", "v"', '["v", "k"'),
    Edit("another key of duplicates", '["k", "v"', '["k", "w"'),
    Edit("a key more of duplicates", '["k", "v"', '["k", "w", "v"'),
    Edit("no duplicates within the watermark", "dropDuplicatesWithinWatermark", "dropDuplicates"),
    Edit("an operator less", '.dropDuplicates(["k", "v"])', ""),
    Edit("an operator less of two", '.dropDuplicates(["k", "v", "t"])', ""),
    Edit("an operator more", 'clean.groupBy("k")', 'clean.dropDuplicates(["k", "v"]).groupBy("k")'),
    # time
    Edit("another size of windows", '"10 seconds")', '"20 seconds")'),
    Edit("windows that overlap", '"10 seconds")', '"10 seconds", "5 seconds")'),
    Edit("windows that begin later", '"10 seconds")', '"10 seconds", "10 seconds", "3 seconds")'),
    Edit("windows of a minute in other words", '"10 seconds")', '"10000 milliseconds")'),
    Edit(
        "another gap of sessions", 'f.session_window("t", "5 seconds")', 'f.session_window("t", "3 seconds")'
    ),
    Edit("tumbling windows for sessions", "session_window", "window"),
    Edit(
        "a longer delay of the watermark",
        'withWatermark("t", "5 seconds")',
        'withWatermark("t", "8 seconds")',
    ),
    Edit(
        "a shorter delay of the watermark",
        'withWatermark("t", "5 seconds")',
        'withWatermark("t", "2 seconds")',
    ),
    Edit("no watermark", '.withWatermark("t", "5 seconds")', ""),
    _in_rows("another moment", "timestamp_seconds(at)", "timestamp_seconds(was)", "{}"),
    _in_rows("a computed moment", "timestamp_seconds(at)", "timestamp_seconds(at - 1)", "{}"),
    # joins
    Edit("an outer join", '"inner")', '"left_outer")'),
    Edit("another outer join", '"left_outer")', '"right_outer")'),
    Edit("an inner join", '"left_outer")', '"inner")'),
    Edit("another key of a join", "l.k = r.k", "l.v = r.v"),
    Edit("a key more of a join", "l.k = r.k", "l.k = r.k AND l.v = r.v"),
    Edit("sides of an equality swapped", "l.k = r.k", "r.k = l.k"),
    Edit("rows that are nearer", "INTERVAL 8 SECONDS", "INTERVAL 3 SECONDS"),
    Edit("rows that are farther", "INTERVAL 8 SECONDS", "INTERVAL 15 SECONDS"),
    Edit("another condition of a join", "l.k = r.k", "l.k = r.k AND l.v < r.v"),
    Edit("another column of a joined side", '"r.v AS b"', '"r.w AS b"'),
    Edit("columns of both sides swapped", '"l.v AS a", "r.v AS b"', '"r.v AS a", "l.v AS b"'),
    Edit("sides of a join swapped", "out(web(), shop())", "out(shop(), web())"),
    Edit("inputs of a union swapped", "both(web(), shop())", "both(shop(), web())"),
    Edit("a union the other way round", f"{_WEB}.union({_SHOP})", f"{_SHOP}.union({_WEB})"),
    Edit(
        "branches the other way round", f"{_SMALL}.unionByName({_LARGE})", f"{_LARGE}.unionByName({_SMALL})"
    ),
    Edit("another folder", 'FOLDER + "/b"', 'FOLDER + "/a"'),
    # state of functions
    Edit("fields of state in another order", "count LONG, total LONG", "total LONG, count LONG"),
    Edit("another name of a field of state", "count LONG, total LONG", "count LONG, sum LONG"),
    Edit("another type of a field of state", "count LONG, total LONG", "count LONG, total DOUBLE"),
    Edit("another name of a variable of state", '("total", "n LONG")', '("sum", "n LONG")'),
    Edit("another type of a variable of state", '("total", "n LONG")', '("total", "n DOUBLE")'),
    Edit("a variable of state that ends", '("total", "n LONG")', '("total", "n LONG", 3_600_000)'),
    Edit("another timeout of state", '"NoTimeout"', '"ProcessingTimeTimeout"'),
    Edit("another time of a processor", '"None"', '"ProcessingTime"'),
    Edit("another name of a variable's field", '("total", "n LONG")', '("total", "m LONG")'),
    Edit(
        "a variable of state less", 'handle.getValueState("total", "n LONG")', "self.count", is_compared=False
    ),
    Edit(
        "variables of state swapped",
        _VARIABLES,
        _VARIABLES.replace("count =", "x =").replace("total =", "count =").replace("x =", "total ="),
    ),
    # stages and sinks
    Edit("more partitions", '"update")', '"update", partitions=3)'),
    Edit("another output mode", 'output_mode="update"', 'output_mode="complete"'),
    Edit("append for a keyed sink", "key=[]", "key=[], output_mode='update'"),
    Edit("another key of the sink", 'key=["k"]', 'key=["a"]', is_compared=False),
    Edit("another uid of the sink", "@spark_sink(", '@spark_sink(uid="shown", ', is_compared=False),
    Edit("a renamed sink", "@spark_sink(", '@spark_sink(uid="shown", previous_uids=["out"], table="out", '),
    Edit("another table", "@spark_sink(", '@spark_sink(table="shown", ', is_compared=False),
    Edit("another uid of a stage", "@spark_stage\n", '@spark_stage(uid="cleaned")\n', is_compared=False),
    Edit("a stage that leaves its chain", "@spark_stage\n", "@spark_stage(chain=False)\n"),
    Edit("a stage that joins a chain", "@spark_stage(chain=False)", "@spark_stage"),
    Edit(
        "another uid of a source",
        "@spark_source\ndef web",
        '@spark_source(uid="clicks")\ndef web',
        is_compared=False,
    ),
)
"""Edits, each with its text before and behind it."""
