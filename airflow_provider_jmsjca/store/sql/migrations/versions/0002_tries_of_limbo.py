"""Adds the maximum number of send attempts to each message in limbo."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; existing messages get the previous fixed maximum of 5 attempts."""
    op.add_column(
        "jms_limbo", sa.Column("most_tries", sa.Integer, nullable=False, server_default=sa.text("5"))
    )
