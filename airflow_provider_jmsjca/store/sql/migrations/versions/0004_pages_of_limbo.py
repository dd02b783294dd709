"""Adds indexes for pages of limbo, which stay fast if most messages have the same state or activation."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Index messages by state and by activation, in both cases in the order of their numbers."""
    op.create_index("jms_limbo_state", "jms_limbo", ["state", "number"])
    op.drop_index("jms_limbo_activation", "jms_limbo")
    op.create_index("jms_limbo_activation", "jms_limbo", ["activation", "number"])
