"""Creates the table of samples: backlog and counts of activations for each minute."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, empty, and add a column for the age of the backlog to the table of runs."""
    op.add_column("jms_activation_run", sa.Column("oldest_at", sa.BigInteger))
    op.create_table(
        "jms_activation_sample",
        sa.Column("activation", sa.String(250), primary_key=True),
        sa.Column("minute_at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("delivered", sa.BigInteger, nullable=False),
        sa.Column("committed", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("dead_lettered", sa.BigInteger, nullable=False),
        sa.Column("backlog", sa.BigInteger),
        sa.Column("oldest_at", sa.BigInteger),
        sqlite_with_rowid=False,
    )
    op.create_index("jms_activation_sample_minute", "jms_activation_sample", ["minute_at"])
