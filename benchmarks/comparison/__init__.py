"""The same keyed count by Flink, bare Spark and us, side by side: ``python -m benchmarks.comparison``.

| file | what it owns |
|---|---|
| ``__main__`` | the command: rounds in alternating order, curves, the table, the chart |
| ``work`` | the input files, one measurement's settings and result; also read by Flink's Python |
| ``on_spark`` | one measurement by bare Spark or by us, in a process of its own |
| ``on_flink`` | one measurement by Flink, in a process of its own, with Flink's Python |
| ``chart`` | the SVG |
"""
