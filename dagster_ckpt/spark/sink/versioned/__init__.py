"""One engine for sinks into tables with versions (Delta, Iceberg): what is published, by whom, and how it goes back.

Without it each format would have its own copy of these rules. A format gives a ``Backend``: it reads and commits.

| file | what it owns |
|---|---|
| ``marks`` | what each commit says of the sink that made it; the sink's names |
| ``version`` | a table as it was read: whose rows it shows, what others have done |
| ``backend`` | the port of formats: ``Backend`` and ``Change`` |
| ``columns`` | columns of rows against those of a table |
| ``engine`` | taken over, published, fenced; repeated where others were faster |
| ``roll_back`` | the way to a cut, and gone |
| ``fork`` | a table that begins with another one's rows |
| ``rows`` | the rows of a state, or of a cut |
| ``upkeep`` | what an attempt may remove, and words of maintenance |
| ``sink`` | ``VersionedSink``: all that is the same behind the port of sinks |
"""
