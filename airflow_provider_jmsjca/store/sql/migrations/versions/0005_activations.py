"""Creates the table of states requested for activations, such as stopped."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, empty: no state is requested yet."""
    op.create_table(
        "jms_activation",
        sa.Column("activation", sa.String(250), primary_key=True),
        sa.Column("wanted", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("asked_by", sa.Text, nullable=False),
        sa.Column("asked_where", sa.String(250), nullable=False),
        sa.Column("since_at", sa.BigInteger, nullable=False),
    )
