"""One engine for sinks into tables with versions (Delta, Iceberg): what is published, by whom, and how it goes back.

Without it each format would have its own copy of these rules. A format gives a ``Backend``: it reads and commits.

| file | what it owns |
|---|---|
| ``marks`` | what each commit says of the sink that made it; the sink's names |
| ``version`` | a table as it was read: whose rows it shows, what others have done |
| ``columns`` | columns of rows against those of a table |
| ``engine`` | taken over, published, fenced, repeated; the port of formats: ``Backend`` and ``Change`` |
| ``roll_back`` | the way to a cut, and gone; a table that begins with another one's rows |
| ``staged_files`` | staged files that become part of a table where they lie |
| ``rewrite`` | copy on write: which rows of a touched file stay; the last row of each key |
| ``sink`` | ``VersionedSink``: all that is the same behind the port of sinks; the rows of a state, or of a cut |
"""
