"""The tables. Every change here needs a revision in `migrations/versions`, and its name in `REVISIONS`.

Columns that end in `_at` or `_until` hold times in milliseconds since the epoch. Names of activations and
message ids are stored in the form of `base.stored_name`.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    false,
    text,
)

REVISIONS: Final = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")
"""Every revision of the schema, the oldest first."""

VERSION_TABLE: Final = "jms_store_version"
"""Table with the revision of the schema; its distinct name lets the store share a database."""

METADATA: Final = MetaData()
_NAME = String(250)
_NUMBER = BigInteger().with_variant(Integer(), "sqlite")

# A message that was handed over and isn't settled. `open`: the outcome of the last attempt is unknown.
# `doubtful`: the outcome of the previous attempt was unknown when the last attempt began. See
# `base.Attempts`.
ATTEMPT: Final = Table(
    "jms_attempt",
    METADATA,
    Column("activation", _NAME, primary_key=True),
    Column("message", _NAME, primary_key=True),
    Column("attempts", Integer, nullable=False),
    Column("first_at", BigInteger, nullable=False),
    Column("first_where", _NAME, nullable=False),
    Column("last_at", BigInteger, nullable=False),
    Column("last_where", _NAME, nullable=False),
    Column("open", Boolean, nullable=False, server_default=false()),
    Column("doubtful", Boolean, nullable=False, server_default=false()),
    Index("jms_attempt_seen", "activation", "last_at"),
    sqlite_with_rowid=False,
)

# History of attempts. A first attempt has a row here only if it failed.
ATTEMPT_HISTORY: Final = Table(
    "jms_attempt_history",
    METADATA,
    Column("activation", _NAME, primary_key=True),
    Column("message", _NAME, primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("begun_at", BigInteger, nullable=False),
    Column("begun_where", _NAME, nullable=False),
    Column("exception_class", Text, nullable=False),
    Column("exception_message", Text, nullable=False),
    sqlite_with_rowid=False,
)

# A message that was handled. `base.HandledIds`.
HANDLED: Final = Table(
    "jms_handled",
    METADATA,
    Column("activation", _NAME, primary_key=True),
    Column("message", _NAME, primary_key=True),
    Column("handled_at", BigInteger, nullable=False),
    Index("jms_handled_seen", "activation", "handled_at"),
    sqlite_with_rowid=False,
)

# A process that holds messages or runs activations. Without heartbeats it is dead, and its messages are in
# doubt. `base.Owners`.
OWNER: Final = Table(
    "jms_owner",
    METADATA,
    Column("owner", _NAME, primary_key=True),
    Column("host", _NAME, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
)

# The state requested for an activation; an activation that may run has no row. `base.Activations`.
ACTIVATION: Final = Table(
    "jms_activation",
    METADATA,
    Column("activation", _NAME, primary_key=True),
    Column("wanted", String(20), nullable=False),
    Column("reason", Text, nullable=False),
    Column("asked_by", Text, nullable=False),
    Column("asked_where", _NAME, nullable=False),
    Column("since_at", BigInteger, nullable=False),
)

# One run of an activation in one process. `process` is the `owner` in `jms_owner`; its heartbeat decides
# whether the run is lost. `base.RunReport`.
ACTIVATION_RUN: Final = Table(
    "jms_activation_run",
    METADATA,
    Column("run", String(64), primary_key=True),
    Column("activation", _NAME, nullable=False),
    Column("title", Text, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("owner", Text, nullable=False),
    Column("process", _NAME, nullable=False),
    Column("host", _NAME, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("broker", Text, nullable=False),
    Column("destination", Text, nullable=False),
    Column("spec_digest", String(64), nullable=False),
    Column("status", String(20), nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("since_at", BigInteger, nullable=False),
    Column("reported_at", BigInteger, nullable=False),
    Column("delivered", BigInteger, nullable=False),
    Column("committed", BigInteger, nullable=False),
    Column("rolled_back", BigInteger, nullable=False),
    Column("moved", BigInteger, nullable=False),
    Column("deleted", BigInteger, nullable=False),
    Column("dead_lettered", BigInteger, nullable=False),
    Column("in_flight", BigInteger, nullable=False),
    Column("backlog", BigInteger),
    Column("last_message_at", BigInteger),
    Column("last_error", Text, nullable=False),
    Column("last_error_at", BigInteger),
    Column("oldest_at", BigInteger),
    Index("jms_activation_run_activation", "activation", "started_at"),
    Index("jms_activation_run_process", "process"),
)

# An activation during one minute, over all its runs. `base.ActivationSample`.
ACTIVATION_SAMPLE: Final = Table(
    "jms_activation_sample",
    METADATA,
    Column("activation", _NAME, primary_key=True),
    Column("minute_at", BigInteger, primary_key=True, autoincrement=False),
    Column("delivered", BigInteger, nullable=False),
    Column("committed", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("dead_lettered", BigInteger, nullable=False),
    Column("backlog", BigInteger),
    Column("oldest_at", BigInteger),
    Index("jms_activation_sample_minute", "minute_at"),
    sqlite_with_rowid=False,
)

# A message in limbo: due later, or failed permanently. Its content is in another table, so that listing
# messages reads no content. See `base.Limbo`.
LIMBO: Final = Table(
    "jms_limbo",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("activation", _NAME, nullable=False),
    Column("key", _NAME, nullable=False),
    Column("state", String(20), nullable=False),
    Column("jms_conn_id", _NAME, nullable=False),
    Column("destination", Text, nullable=False),
    Column("put_at", BigInteger, nullable=False),
    Column("due_at", BigInteger, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("most_tries", Integer, nullable=False, server_default=text("5")),
    Column("leased_by", _NAME),
    Column("leased_until", BigInteger),
    Column("exception_class", Text, nullable=False),
    Column("exception_message", Text, nullable=False),
    Index("jms_limbo_due", "state", "due_at", "number"),
    Index("jms_limbo_state", "state", "number"),
    Index("jms_limbo_activation", "activation", "number"),
    Index("jms_limbo_key", "activation", "key"),
    sqlite_autoincrement=True,
)

# A message in its JSON form, encrypted if `encrypted` is set.
LIMBO_CONTENT: Final = Table(
    "jms_limbo_content",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=False),
    Column("encrypted", Boolean, nullable=False),
    Column("content", LargeBinary, nullable=False),
)
