"""Tables of the coordinator store. A change takes a new file in ``migrations/versions`` and a new HEAD."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Integer, LargeBinary, MetaData, String, Table, Text

HEAD_REVISION = "0003"
"""Newest schema this version of the library knows."""

VERSION_TABLE = "dagster_ckpt_alembic_version"
"""Its own name, so that the store may share a database with Dagster, which uses alembic too."""

metadata = MetaData()

coordinator_record = Table(
    "coordinator_record",
    metadata,
    Column("pipeline", String(100), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("write_id", String(32), nullable=False),
    Column("body", Text, nullable=False),
)
"""The coordinator's record of each pipeline; ``write_id`` tells whose write the current version was."""

checkpoint_history = Table(
    "checkpoint_history",
    metadata,
    # The primary key is the index that "newest first" reads backwards.
    Column("pipeline", String(100), primary_key=True),
    Column("checkpoint_id", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("kind", String(40), nullable=False),
    Column("status", String(40), nullable=False),
    Column("triggered_at", Float(53), nullable=False),
    Column("ended_at", Float(53)),
    Column("body", Text, nullable=False),
)
"""One row per checkpoint and savepoint that was triggered, until its row is outdated (``runtime.history``)."""

checkpoint_object = Table(
    "checkpoint_object",
    metadata,
    # Compared byte by byte in both databases: a listing is a range of the primary key.
    Column("path", Text().with_variant(Text(collation="C"), "postgresql"), primary_key=True),
    Column("write_id", String(32), nullable=False),
    Column("size", BigInteger, nullable=False),
    # The last: SQLite reads the others without it.
    Column("content", LargeBinary, nullable=False),
)
"""Checkpoints kept in the store itself, one row per object; ``path`` is ``<name>/<key>`` of ``store://<name>``."""

operator_audit = Table(
    "operator_audit",
    metadata,
    # SQLite counts integers only.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("pipeline", String(100), nullable=False, index=True),
    Column("at", Float(53), nullable=False),
    Column("what", String(40), nullable=False),
    Column("key", String(100), nullable=False),
    Column("uri", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("shown", Text, nullable=False),
)
"""Who restored, forked and disposed of what, with the preview then shown; rows are only ever added."""
