"""The first schema: one record per pipeline, one history row per checkpoint."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "coordinator_record",
        sa.Column("pipeline", sa.String(100), primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("write_id", sa.String(32), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "checkpoint_history",
        sa.Column("pipeline", sa.String(100), primary_key=True),
        sa.Column("checkpoint_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("status", sa.String(40), nullable=False),
        sa.Column("triggered_at", sa.Float(53), nullable=False),
        sa.Column("ended_at", sa.Float(53)),
        sa.Column("body", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Drop both tables, and with them every record."""
    op.drop_table("checkpoint_history")
    op.drop_table("coordinator_record")
