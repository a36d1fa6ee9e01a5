"""The parts of ``SinkContract``.

| file | what it owns |
|---|---|
| ``base`` | what a subclass gives, and how the tests begin |
| ``run`` | one attempt's sink, rows staged without Spark, processes that end |
| ``publishing`` | rows appear once, all of them, only the newest attempt's; none that was lost or changed |
| ``rolling_back`` | exactly the rows of a cut |
| ``histories`` | another history on top, forks, garbage |
| ``together`` | tables that change at one moment |
| ``keys`` | one row for each key, whatever its type and value; upserts, output mode *complete*, schemas |
| ``values`` | ``ValueContract``: what is in the rows never fails a publish |
"""
