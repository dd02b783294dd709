"""The database: connections, transactions and the schema.

Every failure of a transaction is a `TransientStoreError`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from sqlalchemy import ClauseElement, Connection, CursorResult, Engine, Table, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.sql.compiler import SQLCompiler

from airflow_provider_jmsjca.core.masking import masked_text
from airflow_provider_jmsjca.errors import ConfigurationError, StoreSchemaError, TransientStoreError
from airflow_provider_jmsjca.store.sql.tables import REVISIONS, VERSION_TABLE

_SQLITE, _POSTGRESQL = "sqlite", "postgresql"
_BUSY_SECONDS = 5
_FILE_MODE = 0o600
# Key of a PostgreSQL advisory lock, an arbitrary number.
_UPGRADE_LOCK = 0x6A6D736A6361
_EXPECTED = "expected sqlite:////path/of/a/file or postgresql://user:password@host/database"
_SERVER_TIME: Final = text("SELECT clock_timestamp()")
_UPGRADE: Final = "airflow jms store upgrade"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement compiled into the form that the database driver takes.

    Compiling it once saves SQLAlchemy's work on each parameter of each row.

    Attributes:
        text: The statement.
        names: Names of the parameters in their order; `None` if the database driver takes them by name.
    """

    text: str
    names: tuple[str, ...] | None

    def execute(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> CursorResult[Any]:
        """Execute the statement for each row; the result can be read only if `rows` has one row."""
        values: Any = rows
        if self.names is not None:
            values = [tuple(map(row.__getitem__, self.names)) for row in rows]
        return connection.exec_driver_sql(self.text, values[0] if len(values) == 1 else values)


class Database:
    """The database of a store; connects at first use, and is safe for threads and forks.

    On SQLite, writing transactions run one at a time, and each waits up to 5 seconds for the previous one. On
    PostgreSQL, a transaction waits up to 5 seconds for each lock. Committed data survives a crash of the
    process. On SQLite a power failure may lose the last transactions, except those of `write(durable=True)`.

    Args:
        url: An SQLAlchemy URL for SQLite or PostgreSQL.

    Attributes:
        name: The URL without its password, for errors and logs.
        file: The file of SQLite; `None` on PostgreSQL.

    Raises:
        ConfigurationError: The URL is invalid or names another kind of database, or the database driver isn't
            installed.
    """

    def __init__(self, url: str | URL) -> None:
        self._url = _checked(url)
        self.name = _shown(self._url)
        self.is_sqlite = self._url.get_backend_name() == _SQLITE
        self.file = Path(self._url.database or "") if self.is_sqlite else None
        self._lock = threading.Lock()
        self._here = threading.local()
        self._engine: Engine | None = None
        self._pid = 0
        self._was_there = False

    def insert(self, table: Table) -> Any:
        """Return an INSERT with support for ON CONFLICT."""
        return (sqlite if self.is_sqlite else postgresql).insert(table)

    def prepare(self, statement: ClauseElement) -> Prepared:
        """Return a compiled statement, for statements that are executed for each message."""
        dialect = self._url.get_dialect()()
        compiled = cast("SQLCompiler", statement.compile(dialect=dialect))
        names = compiled.positiontup if compiled.positional else None
        return Prepared(str(compiled), None if names is None else tuple(names))

    @contextlib.contextmanager
    def write(self, *, durable: bool = False) -> Iterator[Connection]:
        """Run the block in a writing transaction, which is committed at the end unless the block raises.

        Args:
            durable: Whether the transaction must also survive a power failure. On PostgreSQL every
                transaction does.

        Raises:
            TransientStoreError: The database (on SQLite its file) is missing, locked, full, read-only or
                damaged; nothing was written.
            ConfigurationError: A number is too large for SQLite, or a text isn't valid Unicode; nothing was
                written.
        """
        begin = "BEGIN IMMEDIATE" if self.is_sqlite else None
        with self._transaction(begin, durable=durable) as connection:
            yield connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Join the transactions that this thread begins in the block; see `base.Store.transaction`."""
        with self.write() as connection:
            self._here.connection = connection
            try:
                yield
            finally:
                self._here.connection = None

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """Run the block in a reading transaction.

        Raises:
            TransientStoreError: The database is missing, locked or damaged.
        """
        with self._transaction("BEGIN" if self.is_sqlite else None) as connection:
            yield connection

    def now(self) -> datetime:
        """Return the time of the database's clock: this host's clock for SQLite, else the server's.

        Raises:
            TransientStoreError: The database can't be reached now.
        """
        if self.is_sqlite:
            return datetime.now(UTC)
        with self.read() as connection:
            found: datetime = connection.execute(_SERVER_TIME).scalar_one()
        return found.astimezone(UTC)

    @contextlib.contextmanager
    def _transaction(self, begin: str | None, *, durable: bool = False) -> Iterator[Connection]:
        joined: Connection | None = getattr(self._here, "connection", None)
        if joined is not None:
            if durable:
                raise AssertionError("a durable transaction can't be a part of another one")
            yield joined  # the outer transaction converts errors
            return
        engine = self._engine_here()
        try:
            with engine.connect() as connection:
                if begin is not None:
                    connection.execution_options(jms_begin=begin, jms_durable=durable)
                with connection.begin():
                    yield connection
        except (SQLAlchemyError, OSError) as error:
            raise TransientStoreError(f"the store {self.name} can't be used now: {_reason(error)}") from error
        except (OverflowError, UnicodeEncodeError) as error:  # of the driver of SQLite
            raise ConfigurationError(f"the store {self.name} can't hold a value: {_reason(error)}") from error
        finally:
            if engine is not self._engine:  # `close` was called while this connection was in use
                engine.pool.dispose()

    def _engine_here(self) -> Engine:
        """Return the engine of this process, because connections must not be shared across a fork."""
        with self._lock:
            if self._engine is None or self._pid != os.getpid():
                if self._engine is not None:
                    self._engine.dispose(close=False)
                self._engine, self._pid = self._new_engine(), os.getpid()
            return self._engine

    def _new_engine(self) -> Engine:
        if not self.is_sqlite:
            engine = create_engine(
                self._url,
                hide_parameters=True,
                pool_pre_ping=True,
                pool_size=2,
                max_overflow=8,
                pool_timeout=_BUSY_SECONDS,
                connect_args={"connect_timeout": _BUSY_SECONDS},
            )
            event.listen(engine, "connect", _set_up_postgresql)
            return engine
        engine = create_engine(self._url, hide_parameters=True, connect_args={"timeout": _BUSY_SECONDS})
        event.listen(engine, "do_connect", self._before_opening)
        event.listen(engine, "connect", self._note_file)
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", self._require_same_file)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    # -- the file of SQLite -------------------------------------------------------------------------------

    def _before_opening(self, *_: object) -> None:
        """Create a missing file, with access for its owner only.

        Raises:
            FileNotFoundError: The file existed before and has disappeared.
        """
        if self._was_there:
            self._file()
            return
        # SQLite would create a world-readable file. Its other files get the mode of this file.
        with contextlib.suppress(OSError):  # it exists, or SQLite reports the reason
            os.close(os.open(self._url.database or "", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE))

    def _note_file(self, _: object, record: Any) -> None:
        record.info["jms_file"] = self._file()
        self._was_there = True

    def _require_same_file(self, connection: Connection) -> None:
        """Raise if the file was removed or moved.

        SQLite would continue to write to the old file, which no other process reads.
        """
        file = self._file()
        if connection.info["jms_file"] != file:
            connection.invalidate()
            raise OSError("its file was replaced by another one, which the next attempt opens")

    def _file(self) -> tuple[int, int]:
        try:
            found = Path(self._url.database or "").stat()
        except FileNotFoundError:
            raise FileNotFoundError(
                f"its file is gone; restore it, or create an empty one: {_UPGRADE}"
            ) from None
        return found.st_dev, found.st_ino

    # -- the schema ---------------------------------------------------------------------------------------

    def revision(self) -> str | None:
        """Return the revision of the schema; `None` if the database has no schema yet.

        Raises:
            TransientStoreError: The database can't be read.
        """
        try:
            if self.file is not None and not self.file.exists():
                return None
        except OSError as error:
            raise TransientStoreError(f"the store {self.name} can't be used now: {_reason(error)}") from error
        with self.read() as connection:
            return self._revision(connection)

    def _revision(self, connection: Connection) -> str | None:
        if not connection.dialect.has_table(connection, VERSION_TABLE):
            return None
        return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608

    def check(self) -> None:
        """Raise if this version of the package can't use the schema.

        Raises:
            StoreSchemaError: The schema is older, newer or missing; the text contains the remedy.
            TransientStoreError: The database can't be read.
        """
        found = self.revision()
        if found == REVISIONS[-1]:
            return
        if found is None:
            raise StoreSchemaError(f"the store {self.name} has no tables yet; run: {_UPGRADE}")
        if found not in REVISIONS:
            raise StoreSchemaError(
                f"the store {self.name} has the schema {found}, made by a newer version of this package; "
                f"this one supports {REVISIONS[-1]}: install the newer version here too"
            )
        raise StoreSchemaError(
            f"the store {self.name} has the schema {found}, expected {REVISIONS[-1]}; stop the processes "
            f"that use it, then run: {_UPGRADE}"
        )

    def upgrade(self) -> str | None:
        """Create or upgrade the tables; of several concurrent calls, only one changes them.

        Returns:
            The revision before the upgrade; `None` if the database had no schema.

        Raises:
            StoreSchemaError: The schema was created by a newer version of the package.
            TransientStoreError: The database can't be written; it is unchanged.
        """
        if self.is_sqlite:
            self._was_there = False
            try:
                Path(self._url.database or "").absolute().parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise TransientStoreError(f"the store {self.name} can't be made: {error}") from error
        with self.write(durable=True) as connection:
            if not self.is_sqlite:
                connection.execute(text("SET LOCAL lock_timeout = 0"))  # wait for an upgrade in progress
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})"))
            before = self._revision(connection)
            if before is None or before in REVISIONS[:-1]:
                _migrate(connection)
        self.check()
        return before

    def upgrade_if_older(self) -> None:
        """Call `upgrade` if the tables are missing or older."""
        found = self.revision()
        if found is None or found in REVISIONS[:-1]:
            self.upgrade()

    def close(self) -> None:
        """Close all connections; a connection in use is closed at the end of its transaction.

        A later call of another method opens new connections.
        """
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            if self._pid == os.getpid():
                engine.pool.dispose()
            else:
                engine.dispose(close=False)


def _checked(given: str | URL) -> URL:
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):  # its text contains the URL, which may hold a password
        raise ConfigurationError(f"store_url: not an SQLAlchemy URL; {_EXPECTED}") from None
    if url.drivername in {_POSTGRESQL, "postgres"}:
        driver = "psycopg" if importlib.util.find_spec("psycopg") else "psycopg2"
        url = url.set(drivername=f"{_POSTGRESQL}+{driver}")
    shown = _shown(url)
    if url.get_backend_name() not in {_SQLITE, _POSTGRESQL}:
        raise ConfigurationError(f"store_url: got {shown}; {_EXPECTED}")
    if url.get_backend_name() == _SQLITE and (url.database or ":memory:").startswith((":memory:", "file:")):
        raise ConfigurationError(f"store_url: got {shown}, which no other process can open; {_EXPECTED}")
    try:
        url.get_dialect().import_dbapi()
    except (NoSuchModuleError, ImportError) as error:
        raise ConfigurationError(
            f"store_url: got {shown}, whose driver isn't installed ({error}); expected one that is: "
            "the extra `postgres` of this package brings psycopg"
        ) from None
    return url


def _shown(url: URL) -> str:
    """Return the URL for errors and logs. Passwords in the query are masked too."""
    before, mark, query = url.render_as_string(hide_password=True).partition("?")
    return before + mark + masked_text(query)


def _set_up_sqlite(connection: Any, _record: object) -> None:
    # Transactions start explicitly; Python's module would start them before the first change.
    connection.isolation_level = None
    connection.text_factory = _decoded
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_SECONDS * 1000}")
    cursor.close()


def _decoded(text: bytes) -> str:
    """Return a stored text; each byte of damaged text that isn't UTF-8 becomes a lone surrogate.

    SQLite's own conversion would raise, so that one damaged row would make all others unreadable.
    """
    return text.decode("utf-8", "surrogateescape")


def _set_up_postgresql(connection: Any, _record: object) -> None:
    # Without a timeout, a transaction would wait for a locked table without end.
    cursor = connection.cursor()
    cursor.execute(f"SET lock_timeout = {_BUSY_SECONDS * 1000}")
    cursor.close()
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    level = "FULL" if options.get("jms_durable", False) else "NORMAL"
    if connection.info.get("jms_synchronous") != level:
        connection.exec_driver_sql(f"PRAGMA synchronous={level}")
        connection.info["jms_synchronous"] = level
    connection.exec_driver_sql(options.get("jms_begin", "BEGIN"))


def _migrate(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 - needed once in the life of a database
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _reason(error: Exception) -> str:
    """Return the database driver's error text as one line, without SQLAlchemy's statement and URL."""
    said = getattr(error, "orig", None) or error
    return f"{type(said).__name__}: {' '.join(str(said).split())}"
