"""Conditions on the rows a stage returns, and the quarantine of rows that break one.

| file | what it owns |
|---|---|
| ``expectations`` | ``expect`` and its limits, as an author writes them |
| ``verdicts`` | conditions as one SQL expression, a bit each |
| ``judged_rows`` | a batch written once, its rows apart by verdict; the rows that are kept |
"""
