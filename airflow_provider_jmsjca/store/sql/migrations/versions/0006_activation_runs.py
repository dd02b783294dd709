"""Creates the registry of activations: one row for each run of an activation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, empty: running processes add their runs with their next reports."""
    op.create_table(
        "jms_activation_run",
        sa.Column("run", sa.String(64), primary_key=True),
        sa.Column("activation", sa.String(250), nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("process", sa.String(250), nullable=False),
        sa.Column("host", sa.String(250), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("broker", sa.Text, nullable=False),
        sa.Column("destination", sa.Text, nullable=False),
        sa.Column("spec_digest", sa.String(64), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("since_at", sa.BigInteger, nullable=False),
        sa.Column("reported_at", sa.BigInteger, nullable=False),
        sa.Column("delivered", sa.BigInteger, nullable=False),
        sa.Column("committed", sa.BigInteger, nullable=False),
        sa.Column("rolled_back", sa.BigInteger, nullable=False),
        sa.Column("moved", sa.BigInteger, nullable=False),
        sa.Column("deleted", sa.BigInteger, nullable=False),
        sa.Column("dead_lettered", sa.BigInteger, nullable=False),
        sa.Column("in_flight", sa.BigInteger, nullable=False),
        sa.Column("backlog", sa.BigInteger),
        sa.Column("last_message_at", sa.BigInteger),
        sa.Column("last_error", sa.Text, nullable=False),
        sa.Column("last_error_at", sa.BigInteger),
    )
    op.create_index("jms_activation_run_activation", "jms_activation_run", ["activation", "started_at"])
    op.create_index("jms_activation_run_process", "jms_activation_run", ["process"])
