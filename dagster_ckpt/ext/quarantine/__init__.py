"""Conditions on the rows a stage returns, and the quarantine of rows that break one, or cannot be processed.

| file | what it owns |
|---|---|
| ``expectations`` | ``expect`` and its limits, as an author writes them |
| ``verdicts`` | conditions as one SQL expression, a bit each |
| ``judged_rows`` | a batch written once, its rows apart by verdict |
| ``poisoned_rows`` | rows on which a batch fails, found by halving its input |
| ``kept_rows`` | columns of the quarantine |
| ``late_rows`` | rows that a watermark drops, read once more |
| ``requeued_rows`` | kept rows that go through their stage again |
"""
