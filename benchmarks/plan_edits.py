"""Edits of ``plan_verdicts``: what people change in a program, as a text before and behind it."""

from __future__ import annotations

from dataclasses import dataclass


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
_TABLE, _TWICE = 'selectExpr("id AS k", "id * 10 AS n")', 'selectExpr("id AS k", "id * 20 AS n")'
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
    # harmless, too
    Edit("a print", "def out(clean):\n", 'def out(clean):\n    print(end="")\n'),
    Edit("an annotation", "def out(clean)", "def out(clean: object)"),
    Edit(
        "a helper",
        "def out(clean):\n",
        "def out(clean):\n    same = lambda rows: rows\n    clean = same(clean)\n",
    ),
    Edit("rows spread anew", "def out(clean):\n", "def out(clean):\n    clean = clean.repartition(2)\n"),
    Edit("an alias", "web.where", 'web.alias("seen").where'),
    Edit("a filter as an object", 'where("v > 0")', 'where(f.col("v") > 0)'),
    Edit("a filter in two parts", 'where("v > 0")', 'where("v > 0").where("v IS NOT NULL")'),
    Edit("a column more of the source", '"k LONG, v LONG', '"k LONG, extra LONG, v LONG'),
    Edit("columns of the source in another order", '"k LONG, v LONG', '"v LONG, k LONG'),
    Edit("a reader in other words", ".parquet(FOLDER", '.format("parquet").load(FOLDER'),
    Edit("an option of the reader", ".schema(columns)", '.schema(columns).option("maxFileAge", "10d")'),
    Edit("the folder with a slash", '"/a")', '"/a/")'),
    Edit("files by a pattern", '"/a")', '"/a/*.parquet")'),
    Edit("a watermark nobody asks", "clean.groupBy(", 'clean.withWatermark("t", "5 seconds").groupBy('),
    Edit(
        "another number of the session's partitions",
        "    reader = spark",
        '    spark.conf.set("spark.sql.shuffle.partitions", "3")\n    reader = spark',
    ),
    # what rows come through
    Edit(
        "another time zone of the session",
        "    reader = spark",
        '    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")\n    reader = spark',
    ),
    Edit("another part of a moment", '"hour"', '"minute"'),
    Edit("the same part of a moment", '"hour"', '"HOUR"'),
    Edit("a moment cut in SQL", 'f.date_trunc("hour", "t")', "f.expr(\"date_trunc('hour', t)\")"),
    Edit("fields of a struct swapped", 'f.struct("v", "w")', 'f.struct("w", "v")'),
    Edit("a field of a struct more", 'f.struct("v", "w")', 'f.struct("v", "w", "p")'),
    Edit("another column of a struct", 'f.struct("v", "w")', 'f.struct(f.col("p").alias("v"), "w")'),
    Edit("min_by for max_by", "f.max_by", "f.min_by"),
    Edit("another order of max_by", '), "w").alias("s")', '), "v").alias("s")'),
    Edit("a set for a list", 'collect_list("v")', 'collect_set("v")'),
    Edit("a list for a set", 'collect_set("w")', 'collect_list("w")'),
    Edit("a list of another column", 'collect_list("v")', 'collect_list("w")'),
    Edit("a count that is nearer", 'distinct("v")', 'distinct("v", 0.01)'),
    Edit("a count of another column's values", 'distinct("v")', 'distinct("w")'),
    Edit("variance for deviation", "f.stddev(", "f.variance("),
    Edit("deviation of all", "f.stddev(", "f.stddev_pop("),
    Edit("counts swapped", "agg(small.alias", "agg(large.alias"),
    Edit("another bound of a count", 'f.expr("w < 250")', 'f.expr("w < 700")'),
    Edit("cube for rollup", "rollup(", "cube("),
    Edit("groups for rollup", "rollup(", "groupBy("),
    Edit("keys of rollup in another order", 'rollup("k", "p")', 'rollup("p", "k")'),
    Edit(
        "distinct columns in another order",
        'select("k", "v", "w").distinct',
        'select("v", "k", "w").distinct',
    ),
    Edit(
        "a distinct column less",
        'select("k", "v", "w").distinct()',
        'select("k", "v").distinct().withColumn("w", f.lit(0))',
    ),
    Edit("all rows for distinct ones", ".distinct()", ""),
    Edit("duplicates for distinct rows", ".distinct()", ".dropDuplicates()"),
    Edit("a higher limit", "limit(9)", "limit(12)"),
    Edit("a lower limit", "limit(9)", "limit(7)"),
    Edit("no limit", ".limit(9)", ""),
    Edit(
        "results in order",
        'out(clean):\n    return clean.groupBy("k")',
        'out(clean):\n    return clean.orderBy("k").groupBy("k")',
    ),
    # tables that stand still, and functions
    Edit("other values of a table", f"{_TABLE}\n    return", f"{_TWICE}\n    return"),
    Edit(
        "other values of a table that are counted",
        f'{_TABLE}\n    rows = clean.join(sides, "k")',
        f'{_TWICE}\n    rows = clean.join(sides, "k")',
        f'{_TABLE}\n    rows = clean.join(sides, "k").withColumn("n", f.expr("CASE WHEN p = 1 THEN n ELSE 2 * n END"))',
    ),
    Edit(
        "a row less of a table",
        f"range(4).{_TABLE}\n    rows = clean.",
        f"range(3).{_TABLE}\n    rows = clean.",
        f'range(4).{_TABLE}\n    rows = clean.where("p = 1 OR k < 3").',
    ),
    Edit("an inner join with a table", 'sides, "k", "left")', 'sides, "k")'),
    Edit("an outer join with a table", 'join(sides, "k")', 'join(sides, "k", "left")'),
    Edit("a table that is sent to all", "join(sides", "join(f.broadcast(sides)"),
    Edit("another body of a column's function", "v * 2,", "v * 3,", "v * (2 if p == 1 else 3),"),
    Edit("another type of a function's result", 'v * 2, "long")', 'v * 2, "int")'),
    Edit("another key by a function", "v % 3,", "v % 2,", "v % (3 if p == 1 else 2),"),
    Edit("the same function in other words", "lambda v, p: v", "lambda v, p: 0 + v"),
    Edit("larger windows of windows", '"20 seconds")', '"40 seconds")'),
    Edit("the column of inner windows", 'f.window("window",', 'f.window(f.window_time("window"),'),
    Edit("a join of another moment", '["k", "t"]', '["k", "v", "t"]'),
    Edit("a column of the other side", '"l.v AS v", "r.w AS w"', '"r.v AS v", "l.w AS w"'),
    Edit("sides of itself swapped", "left.join(right,", "right.join(left,"),
    Edit("another span of itself", "INTERVAL 4 SECONDS", "INTERVAL 2 SECONDS"),
    Edit(
        "another watermark of a side",
        'left.withWatermark("t", "5 seconds"), right',
        'left.withWatermark("t", "9 seconds"), right',
    ),
    # state of functions, too
    Edit(
        "a variable of state more",
        "def init(self, handle):\n",
        'def init(self, handle):\n        self.more = handle.getValueState("more", "n LONG")\n',
    ),
    Edit(
        "a value for a list of state",
        'getListState("values", "v LONG")',
        'getValueState("values", "v LONG")',
        is_compared=False,
    ),
    Edit("another name of a list of state", '("values", "v LONG")', '("seen", "v LONG")'),
    Edit(
        "another type of a list of state", '("values", "v LONG")', '("values", "v STRING")', is_compared=False
    ),
    Edit("another key of a map of state", '"p LONG", "w LONG"', '"p STRING", "w LONG"', is_compared=False),
    Edit("another name of a map's field", '"p LONG", "w LONG"', '"q LONG", "w LONG"'),
    Edit(
        "another body of a processor",
        "max(row.w or 0",
        "min(row.w or 0",
        "(max if row.p == 1 else min)(row.w or 0",
    ),
    Edit("a longer timeout", "40_000", "60_000"),
    Edit("no timeout", "EventTimeTimeout", "NoTimeout"),
)
"""Edits, each with its text before and behind it."""
