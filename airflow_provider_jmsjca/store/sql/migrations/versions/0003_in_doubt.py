"""Records in each attempt whether its outcome is known; drops the unused table of messages in doubt."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; the outcome of existing attempts counts as known."""
    for name in ("open", "doubtful"):
        op.add_column("jms_attempt", sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false()))
    op.drop_table("jms_in_doubt")
