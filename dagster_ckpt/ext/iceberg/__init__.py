"""Iceberg tables, written by pyiceberg: a checkpoint's rows are one snapshot, and a roll-back moves the branch back.

The rows lie where Spark staged them, below ``_dagster_ckpt/staged`` in the table's location (clean-ups of orphan files
pass over names that begin with an underscore), and a snapshot names them. The summary of each of our snapshots carries
a ``Mark``: what the table has seen of the pipeline; a tag holds the newest, so that nobody's expiry removes it. A
commit asserts the snapshot that the branch and the tag were read at, so a racing or older attempt is refused by the
catalog (docs/decisions/0020-iceberg.md).

| file | what it owns |
|---|---|
| ``sink`` | ``IcebergSink``, the port; tables of one catalog that change at one moment |
| ``catalogs`` | the catalog of a target: its settings, its place, opened |
| ``backend`` | the table behind the engine (``ext/tables``): read, committed to |
| ``together`` | commits that are kept, and carried out as one change |
| ``lake`` | the calls of pyiceberg, and its errors in the library's words |
| ``version`` | the table as it was read: its snapshots as states; tags and branches |
| ``columns`` | rows against the table's columns; what must not be written to |
| ``files`` | staged files as a snapshot names them, with bounds that hold; those that keys touch, rewritten |
| ``upkeep`` | small files merged; tags for snapshots that cuts need, expiry of ours; files that no snapshot shows |
"""

from dagster_ckpt.errors import InvalidRequest, install_extra

try:
    import pyiceberg as _  # noqa: F401
except ImportError as error:
    raise InvalidRequest(f"an Iceberg table needs the extra 'iceberg': {install_extra('iceberg')}") from error
