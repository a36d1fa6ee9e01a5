"""A table of what people had done: restores, forks, disposals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table; nothing that is there changes."""
    op.create_table(
        "operator_audit",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("pipeline", sa.String(100), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("what", sa.String(40), nullable=False),
        sa.Column("key", sa.String(100), nullable=False),
        sa.Column("uri", sa.Text, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("shown", sa.Text, nullable=False),
    )
    op.create_index("ix_operator_audit_pipeline", "operator_audit", ["pipeline"])


def downgrade() -> None:
    """Drop the table, and with it the audit."""
    op.drop_table("operator_audit")
