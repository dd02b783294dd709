"""Creates the first tables: attempts, ids of handled messages, owners, messages in doubt, limbo."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NAME = sa.String(250)
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "jms_attempt",
        sa.Column("activation", _NAME, primary_key=True),
        sa.Column("message", _NAME, primary_key=True),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("first_at", sa.BigInteger, nullable=False),
        sa.Column("first_where", _NAME, nullable=False),
        sa.Column("last_at", sa.BigInteger, nullable=False),
        sa.Column("last_where", _NAME, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("jms_attempt_seen", "jms_attempt", ["activation", "last_at"])
    op.create_table(
        "jms_attempt_history",
        sa.Column("activation", _NAME, primary_key=True),
        sa.Column("message", _NAME, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("begun_at", sa.BigInteger, nullable=False),
        sa.Column("begun_where", _NAME, nullable=False),
        sa.Column("exception_class", sa.Text, nullable=False),
        sa.Column("exception_message", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "jms_handled",
        sa.Column("activation", _NAME, primary_key=True),
        sa.Column("message", _NAME, primary_key=True),
        sa.Column("handled_at", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("jms_handled_seen", "jms_handled", ["activation", "handled_at"])
    op.create_table(
        "jms_owner",
        sa.Column("owner", _NAME, primary_key=True),
        sa.Column("host", _NAME, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "jms_in_doubt",
        sa.Column("activation", _NAME, primary_key=True),
        sa.Column("message", _NAME, primary_key=True),
        sa.Column("owner", _NAME, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("destination", sa.Text, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("received_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
    )
    op.create_index("jms_in_doubt_owner", "jms_in_doubt", ["owner"])
    op.create_table(
        "jms_limbo",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("activation", _NAME, nullable=False),
        sa.Column("key", _NAME, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("jms_conn_id", _NAME, nullable=False),
        sa.Column("destination", sa.Text, nullable=False),
        sa.Column("put_at", sa.BigInteger, nullable=False),
        sa.Column("due_at", sa.BigInteger, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("leased_by", _NAME),
        sa.Column("leased_until", sa.BigInteger),
        sa.Column("exception_class", sa.Text, nullable=False),
        sa.Column("exception_message", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("jms_limbo_due", "jms_limbo", ["state", "due_at", "number"])
    op.create_index("jms_limbo_activation", "jms_limbo", ["activation", "state", "number"])
    op.create_index("jms_limbo_key", "jms_limbo", ["activation", "key"])
    op.create_table(
        "jms_limbo_content",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("encrypted", sa.Boolean, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
