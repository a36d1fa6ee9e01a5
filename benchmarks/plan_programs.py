"""Programs of ``plan_verdicts``: a pipeline for every stateful operator, and for every way to put stages together."""

from __future__ import annotations

from collections.abc import Iterator

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
_PROJECT = """
@dp.table
def web():
    columns = "k LONG, v LONG, w LONG, at LONG, was LONG, p LONG"
    reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
    return reader.parquet(FOLDER + "/a")

@dp.table
def out():
    web = spark.readStream.table("web")
    clean = web.where("v > 0").selectExpr("k AS k", "v AS v", "w AS w", "at", "was", "p")
    clean = clean.withColumn("t", f.expr("timestamp_seconds(at)"))
{body}
"""
"""A project of Spark's declarative pipelines."""
_DECLARED = """
@checkpointed_pipeline(name="{name}")
def pipeline():
    rows = {rows}
    {more}out(rows)
"""
_SIDES = """
@spark_sink(key=[])
def out(web, shop):
    left = web.where("v > 0").selectExpr("k AS k", "v AS v", "w AS w", "p", "timestamp_seconds(at) AS t")
    right = shop.selectExpr("k AS k", "v AS v", "w AS w", "timestamp_seconds(at) AS t")
    left, right = left.withWatermark("t", "5 seconds"), right.withWatermark("t", "5 seconds")
"""
_JOINED = (
    _SIDES
    + """    near = "l.k = r.k AND l.t BETWEEN r.t - INTERVAL 8 SECONDS AND r.t + INTERVAL 8 SECONDS"
    pairs = left.alias("l").join(right.alias("r"), f.expr(near), "{how}")
    return {shown}

@checkpointed_pipeline(name="{how}")
def pipeline():
    out(web(), shop())
"""
)
_JOINS = {
    "inner": 'pairs.selectExpr("l.k AS k", "l.v AS a", "r.v AS b").where("a > 0")',
    "left_outer": 'pairs.selectExpr("l.k AS k", "l.v AS a", "r.v AS b").where("a > 0")',
    "right_outer": 'pairs.selectExpr("r.k AS k", "r.v AS a", "l.v AS b").where("a > 0")',
    "full_outer": 'pairs.selectExpr("coalesce(l.k, r.k) AS k", "l.v AS a", "r.v AS b")',
    "left_semi": 'pairs.selectExpr("l.k AS k", "l.v AS a", "l.w AS b").where("a > 0")',
}
"""What is shown of each kind of join of two streams."""
_JOINED_SUMS = (
    _SIDES
    + """    same = left.alias("l").join(right.alias("r"), ["k", "t"]).selectExpr("k", "t", "l.v AS v", "r.w AS w")
    rows = same.groupBy(f.window("t", "10 seconds"), "k").agg(f.sum("v").alias("a"), f.count("w").alias("b"))
    return rows.selectExpr("CAST(window.start AS LONG) AS start", "k", "a", "b").where("a > 0")

@checkpointed_pipeline(name="joined_sums")
def pipeline():
    out(web(), shop())
"""
)
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
_TIMEOUT = """
def closed(key, frames, state):
    import pandas as pd

    if state.hasTimedOut:
        count, total = state.get
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "a": [total], "b": [count]})
        return
    count, total = state.get if state.exists else (0, 0)
    for frame in frames:
        for v, p in zip(frame["v"].tolist(), frame["p"].tolist()):
            count, total = count + 1, total + (v + 0)
    state.update((count, total))
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 40_000)

@spark_sink(key=[])
def out(clean):
    groups = clean.withWatermark("t", "5 seconds").groupBy("k")
    kept = "count LONG, total LONG"
    rows = groups.applyInPandasWithState(closed, "k LONG, a LONG, b LONG", kept, "append", "EventTimeTimeout")
    return rows.where("a > 0")
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
_ROWS_PROCESSOR = """
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

class Seen(StatefulProcessor):
    def init(self, handle):
        self.values = handle.getListState("values", "v LONG")
        self.largest = handle.getMapState("largest", "p LONG", "w LONG")

    def handleInputRows(self, key, rows, timers):
        for row in rows:
            self.values.appendValue((row.v + 0,))
            before = self.largest.getValue((row.p,))
            self.largest.updateValue((row.p,), (max(row.w or 0, before[0] if before else 0),))
        total = sum(one[0] for one in self.values.get())
        yield Row(k=key[0], a=total, b=sum(one[0] for one in self.largest.values()))

    def close(self):
        pass

@spark_sink(key=["k"], output_mode="update")
def out(clean):
    groups = clean.groupBy("k")
    return groups.transformWithState(Seen(), "k LONG, a LONG, b LONG", "Update", "None").where("a > 0")
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
    "days": f"""
rows = clean.groupBy(f.date_trunc("hour", "t").alias("day"), "k").{_AGGREGATES}
return rows.selectExpr("CAST(day AS LONG) AS day", "k", "a", "b", "c").where("a > 0")
""",
    "whole": """
rows = clean.groupBy("k").agg(f.max_by(f.struct("v", "w"), "w").alias("s"), f.count("w").alias("n"))
return rows.selectExpr("k", "s.v AS a", "s.w AS b", "n")
""",
    "lists": """
rows = clean.groupBy("k").agg(f.collect_list("v").alias("x"), f.collect_set("w").alias("y"))
return rows.selectExpr("k", "CAST(array_sort(x) AS STRING) AS a", "size(y) AS b")
""",
    "rare": """
rows = clean.groupBy("k").agg(f.approx_count_distinct("v").alias("a"), f.stddev("w").alias("s"))
return rows.selectExpr("k", "a", "CAST(s AS LONG) AS b").where("a > 0")
""",
    "ifs": """
small, large = f.count_if(f.expr("w < 250")), f.count_if(f.expr("w >= 250"))
return clean.groupBy("k").agg(small.alias("a"), large.alias("b"))
""",
    "rollup": f"""
rows = clean.rollup("k", "p").{_AGGREGATES}
return rows.selectExpr("coalesce(k, -1) AS k", "coalesce(p, -1) AS p", "a", "b", "c").where("a > 0")
""",
    "distinct": """
rows = clean.select("k", "v", "w").distinct()
return rows.selectExpr("k", "v AS a", "w AS b").where("a > 0")
""",
    "limit": """
rows = clean.select("k", "v", "w").limit(9)
return rows.selectExpr("k", "v AS a", "w AS b").where("a > 0")
""",
    "complete": f'return clean.groupBy("k").{_AGGREGATES}.where("a > 0")',
    "static": """
sides = clean.sparkSession.range(4).selectExpr("id AS k", "id * 10 AS n")
rows = clean.join(sides, "k").groupBy("k").agg(f.sum("n").alias("a"), f.count("w").alias("b"))
return rows.where("a > 0")
""",
    "static rows": """
sides = clean.sparkSession.range(4).selectExpr("id AS k", "id * 10 AS n")
return clean.join(sides, "k", "left").selectExpr("k", "v AS a", "n AS b").where("a > 0")
""",
    "function": """
changed = f.udf(lambda v, p: v * 2, "long")
rows = clean.withColumn("v", changed("v", "p"))
return rows.groupBy("k").agg(f.sum("v").alias("a"), f.count("w").alias("b")).where("a > 0")
""",
    "key by a function": """
changed = f.udf(lambda v, p: v % 3, "long")
rows = clean.groupBy(changed("v", "p").alias("k")).agg(f.sum("v").alias("a"), f.count("w").alias("b"))
return rows.where("a > 0")
""",
    "windows of windows": """
rows = clean.withWatermark("t", "5 seconds").groupBy(f.window("t", "10 seconds"), "k").agg(f.sum("v").alias("a"))
rows = rows.groupBy(f.window("window", "20 seconds")).agg(f.sum("a").alias("a"), f.count("k").alias("b"))
return rows.selectExpr("CAST(window.start AS LONG) AS start", "a", "b").where("a > 0")
""",
    "itself": """
rows = clean.withWatermark("t", "5 seconds")
left, right = rows.selectExpr("k", "t", "v"), rows.selectExpr("k AS l", "t AS u", "w")
pairs = left.join(right, f.expr("k = l AND t BETWEEN u AND u + INTERVAL 4 SECONDS"))
return pairs.selectExpr("k", "v AS a", "w AS b").where("a > 0")
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
    "days": _KEYED.replace('"k"', '"day", "k"'),
    "rollup": _KEYED.replace('"k"', '"k", "p"'),
    "complete": _KEYED.replace("update", "complete"),
    **dict.fromkeys(("whole", "lists", "rare", "ifs", "static", "function", "key by a function"), _KEYED),
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
    for name in ("stateless", "window", "two operators", "within"):
        body = "".join(f"    {line}\n" for line in _SINKS[name].strip().splitlines())
        yield f"project_{name.replace(' ', '_')}", _PROJECT.format(body=body)
    yield whole("pandas", web, _CLEAN, _PANDAS)
    yield whole("processor", web, _CLEAN, _PROCESSOR)
    yield whole(
        "channel", web, _CLEAN, _CHANNEL, _sink(_SINKS["aggregation"], _KEYED), more="rows = once(rows)\n    "
    )
    yield whole("union", web, shop, _UNION, _sink(_SINKS["aggregation"], _KEYED), rows="both(web(), shop())")
    yield whole("timeout", web, _CLEAN, _TIMEOUT)
    yield whole("row by row", web, _CLEAN, _ROWS_PROCESSOR)
    for how, pairs in _JOINS.items():
        yield how, web + shop + _JOINED.format(how=how, shown=pairs)
    yield "joined_sums", web + shop + _JOINED_SUMS


PROGRAMS = dict(_programs())
