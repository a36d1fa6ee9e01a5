"""A table for checkpoints that are kept in the store itself."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table; nothing that is there changes."""
    op.create_table(
        "checkpoint_object",
        # Compared byte by byte in both databases: a listing is a range of the primary key.
        sa.Column("path", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), primary_key=True),
        sa.Column("write_id", sa.String(32), nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Drop the table, and with it the checkpoints in the store."""
    op.drop_table("checkpoint_object")
