"""Limbo in a database."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, or_, select, true, update

from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.query import write_named_destination
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.store.base import (
    EVERYTHING,
    PRIVATE,
    LimboEntry,
    LimboMessage,
    LimboSelection,
    LimboState,
    from_milliseconds,
    listed_name,
    stored_name,
    stored_text,
    to_milliseconds,
)
from airflow_provider_jmsjca.store.sql.database import Database
from airflow_provider_jmsjca.store.sql.tables import HANDLED, LIMBO, LIMBO_CONTENT
from airflow_provider_jmsjca.store.sql.windows import chunks


class Cipher(Protocol):
    """A key that encrypts messages, such as Airflow's Fernet."""

    is_encrypted: bool
    """Whether a key is configured; without a key, nothing is encrypted."""

    def encrypt(self, msg: bytes) -> bytes:
        """Return the encrypted text."""

    def decrypt(self, msg: bytes) -> bytes:
        """Return the decrypted text; raise if it wasn't encrypted with this key."""


class SqlLimbo:
    """`base.Limbo` in a database.

    Args:
        database: Database with the tables.
        cipher: Encrypts messages; `None`: messages are stored in clear text.
    """

    def __init__(self, database: Database, cipher: Cipher | None = None) -> None:
        self._database = database
        self._cipher = cipher if cipher is not None and cipher.is_encrypted else None

    def now(self) -> datetime:
        """Return the time by the clock of the database; see `base.Limbo.now`."""
        return self._database.now()

    def put(self, entries: Sequence[LimboEntry], now: datetime) -> list[int]:
        """Store these messages, all or none; see `base.Limbo.put`."""
        numbers: list[int] = []
        with self._database.write(durable=True) as connection:
            for entry in entries:
                if entry.key and entry.again:
                    last = self._last_of(connection, entry)
                    if last is None and entry.once and _is_marked(connection, entry):
                        continue
                    _drop(connection, [] if last is None else [last])
                if entry.once:
                    _forget_keys(connection, entry.activation, [entry.key])
                    connection.execute(insert(HANDLED).values(**_mark(entry, now)))
                row = connection.execute(insert(LIMBO).values(**_row(entry, now)))
                number: int = row.inserted_primary_key[0]  # type: ignore[index]  # a table with a key has it
                connection.execute(insert(LIMBO_CONTENT).values(number=number, **self._stored(entry.message)))
                numbers.append(number)
        return numbers

    @staticmethod
    def _last_of(connection: Connection, entry: LimboEntry) -> int | None:
        """Return the number of the message that an entry replaces: the last one with the same key.

        `None`: there is no such message. An entry with `once` doesn't replace a message that has a lease,
        because that message may already have been sent.
        """
        same = and_(
            LIMBO.c.activation == stored_name(entry.activation), LIMBO.c.key == stored_name(entry.key)
        )
        if entry.once:
            same = and_(same, LIMBO.c.leased_until.is_(None))
        last = select(LIMBO.c.number).where(same).order_by(LIMBO.c.number.desc()).limit(1)
        return connection.execute(last.with_for_update()).scalar()

    def settled(self, activation: str, keys: Collection[str]) -> None:
        """Forget the keys of entries put with `once=True`; see `base.Limbo.settled`."""
        if keys:
            with self._database.write() as connection:
                _forget_keys(connection, activation, keys)

    def _stored(self, message: JmsMessage) -> dict[str, object]:
        content = json.dumps(message.to_json(), ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        if self._cipher is not None:
            return {"encrypted": True, "content": self._cipher.encrypt(content)}
        return {"encrypted": False, "content": content}

    def lease(
        self,
        now: datetime,
        *,
        owner: str,
        until: datetime,
        limit: int,
        leave: Collection[str] = (),
        connections: Collection[str] | None = None,
    ) -> list[LimboMessage]:
        """Lease due messages that have no lease; see `base.Limbo.lease`."""
        due = (
            select(LIMBO)
            .where(_due(now, leave, connections), LIMBO.c.leased_until.is_(None))
            .order_by(LIMBO.c.due_at, LIMBO.c.number)
            .limit(limit)
            .with_for_update(skip_locked=True)  # ignored on SQLite, which has one writer at a time
        )
        with self._database.read() as connection:
            if connection.execute(due.with_only_columns(LIMBO.c.number).limit(1)).first() is None:
                return []  # without a write lock: this query runs every second and must not block writers
        with self._database.write() as connection:
            rows = connection.execute(due).all()
            for some in chunks([row.number for row in rows]):
                connection.execute(
                    update(LIMBO)
                    .where(LIMBO.c.number.in_(some))
                    .values(leased_by=stored_name(owner), leased_until=to_milliseconds(until))
                )
        return [_message(row) for row in rows]

    def take_over(
        self,
        now: datetime,
        *,
        until: datetime,
        leave: Collection[str] = (),
        connections: Collection[str] | None = None,
    ) -> dict[str, list[LimboMessage]]:
        """Return messages with an expired lease, by owner; see `base.Limbo.take_over`."""
        over = and_(_due(now, leave, connections), LIMBO.c.leased_until <= to_milliseconds(now))
        found: defaultdict[str, list[LimboMessage]] = defaultdict(list)
        with self._database.read() as connection:
            if connection.execute(select(LIMBO.c.number).where(over).limit(1)).first() is None:
                return found
        with self._database.write() as connection:
            # Without SKIP LOCKED, so that one process takes over all messages of an owner. Another process
            # waits for the locks, and then finds no expired lease.
            query = select(LIMBO).where(over).order_by(LIMBO.c.number).with_for_update()
            rows = connection.execute(query).all()
            for some in chunks([row.number for row in rows]):
                connection.execute(
                    update(LIMBO).where(LIMBO.c.number.in_(some)).values(leased_until=to_milliseconds(until))
                )
        for row in rows:
            found[row.leased_by].append(_message(row))
        return found

    def sent(self, owner: str, numbers: Collection[int]) -> int:
        """Delete messages that the owner has sent and still leases; see `base.Limbo.sent`."""
        count = 0
        with self._database.write(durable=True) as connection:
            for some in chunks(numbers):
                mine = select(LIMBO.c.number).where(_leased(owner, some))
                found = list(connection.execute(mine).scalars())
                _drop(connection, found)
                count += len(found)
        return count

    def give_back(
        self,
        owner: str,
        numbers: Collection[int],
        *,
        due_at: datetime | None = None,
        failure: Failure | None = None,
    ) -> None:
        """End the owner's lease of messages that were not sent; see `base.Limbo.give_back`."""
        values: dict[str, object] = {"leased_by": None, "leased_until": None}
        if due_at is not None:
            values["due_at"] = to_milliseconds(due_at)
        if failure is not None:
            values |= {
                "tries": LIMBO.c.tries + 1,
                "exception_class": stored_text(failure.class_name),
                "exception_message": stored_text(failure.message),
            }
            if due_at is None:
                values["state"] = LimboState.FAILED
        with self._database.write(durable=failure is not None) as connection:
            for some in chunks(numbers):
                connection.execute(update(LIMBO).where(_leased(owner, some)).values(**values))

    def contents(self, numbers: Collection[int]) -> dict[int, JmsMessage | ConfigurationError]:
        """Return the messages with these numbers; see `base.Limbo.contents`."""
        found: list[Row[Any]] = []
        with self._database.read() as connection:
            for some in chunks(numbers):
                query = select(LIMBO_CONTENT).where(LIMBO_CONTENT.c.number.in_(some))
                found += connection.execute(query).all()
        return {row.number: self._read(row) for row in found}

    def _read(self, row: Row[Any]) -> JmsMessage | ConfigurationError:
        try:
            return JmsMessage.from_json(json.loads(self._clear(row)))
        except ConfigurationError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a cipher's own
            return ConfigurationError(
                f"message {row.number} in limbo can't be read ({type(error).__name__}: {error}); expected "
                "content encrypted with [core] fernet_key (older keys may follow the new one, after commas)"
            )

    def _clear(self, row: Row[Any]) -> bytes:
        content: bytes = row.content
        if not row.encrypted:
            return content
        if self._cipher is None:
            raise ConfigurationError(
                f"message {row.number} in limbo is encrypted, and there is no key; set [core] fernet_key"
            )
        return self._cipher.decrypt(content)

    def page(
        self, selection: LimboSelection = EVERYTHING, *, limit: int = 100, after: int = 0
    ) -> list[LimboMessage]:
        """Return messages in the order of their numbers; see `base.Limbo.page`."""
        query = select(LIMBO).where(_condition(selection), LIMBO.c.number > after)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(LIMBO.c.number).limit(limit)).all()
        return [_message(row) for row in rows]

    def activations(self) -> frozenset[str]:
        """Return the activations with messages in limbo; see `base.Limbo.activations`."""
        with self._database.read() as connection:
            return frozenset(connection.scalars(select(LIMBO.c.activation).distinct()))

    def revive(self, selection: LimboSelection, now: datetime) -> int:
        """Make failed messages due now; see `base.Limbo.revive`."""
        return self._make_due(selection, LimboState.FAILED, now, tries=0)

    def release(self, selection: LimboSelection, now: datetime) -> int:
        """Make waiting messages due now; see `base.Limbo.release`."""
        return self._make_due(selection, LimboState.WAITING, now)

    def _make_due(
        self, selection: LimboSelection, state: LimboState, now: datetime, tries: int | None = None
    ) -> int:
        at = to_milliseconds(now)
        later = or_(LIMBO.c.state == LimboState.FAILED, LIMBO.c.due_at > at)
        change = (
            update(LIMBO)
            .where(_condition(selection), LIMBO.c.state == state, later)
            .values(state=LimboState.WAITING, due_at=at, tries=LIMBO.c.tries if tries is None else tries)
        )
        with self._database.write(durable=True) as connection:
            return connection.execute(change).rowcount

    def purge(self, selection: LimboSelection, now: datetime) -> int:
        """Delete messages that are not being sent; see `base.Limbo.purge`."""
        query = select(LIMBO.c.number, LIMBO.c.activation, LIMBO.c.key).where(
            _condition(selection), _free(now)
        )
        with self._database.write(durable=True) as connection:
            found = connection.execute(query).all()
            keys: defaultdict[str, list[str]] = defaultdict(list)
            for row in found:
                if row.key:
                    keys[row.activation].append(row.key)
            for activation, its in keys.items():
                _forget_keys(connection, activation, its)
            for some in chunks([row.number for row in found]):
                _drop(connection, some)
        return len(found)


def _row(entry: LimboEntry, now: datetime) -> dict[str, object]:
    return {
        "activation": stored_name(entry.activation),
        "key": stored_name(entry.key) if entry.key else "",
        "state": LimboState.WAITING if entry.failure is None else LimboState.FAILED,
        "jms_conn_id": entry.jms_conn_id,
        "destination": entry.destination,
        "put_at": to_milliseconds(now),
        "due_at": to_milliseconds(entry.due_at),
        "tries": 0,
        "most_tries": entry.most_tries,
        "exception_class": stored_text(entry.failure.class_name) if entry.failure else "",
        "exception_message": stored_text(entry.failure.message) if entry.failure else "",
    }


def _message(row: Row[Any]) -> LimboMessage:
    return LimboMessage(
        number=row.number,
        state=LimboState(row.state),
        jms_conn_id=row.jms_conn_id,
        destination=row.destination,
        activation=row.activation,
        put_at=from_milliseconds(row.put_at),
        due_at=from_milliseconds(row.due_at),
        tries=row.tries,
        most_tries=row.most_tries,
        exception_class=row.exception_class,
        exception_message=row.exception_message,
    )


def _due(now: datetime, leave: Collection[str], connections: Collection[str] | None) -> ColumnElement[bool]:
    name = LIMBO.c.jms_conn_id
    return and_(
        name.not_like(f"{PRIVATE}%") if connections is None else name.in_(sorted(connections)),
        LIMBO.c.state == LimboState.WAITING,
        LIMBO.c.due_at <= to_milliseconds(now),
        name.not_in(sorted(leave)),
    )


def _free(now: datetime) -> ColumnElement[bool]:
    return or_(LIMBO.c.leased_until.is_(None), LIMBO.c.leased_until <= to_milliseconds(now))


# Name under which keys of limbo are stored in the table of handled messages. No activation has such a name,
# and the limits of that table apply to the keys too.
def _marks_of(activation: str) -> str:
    return f"{listed_name(activation)}, sent through limbo"


def _mark(entry: LimboEntry, now: datetime) -> dict[str, object]:
    return {
        "activation": _marks_of(entry.activation),
        "message": stored_name(entry.key),
        "handled_at": to_milliseconds(now),
    }


def _is_marked(connection: Connection, entry: LimboEntry) -> bool:
    marked = select(HANDLED.c.message).where(
        HANDLED.c.activation == _marks_of(entry.activation), HANDLED.c.message == stored_name(entry.key)
    )
    return connection.execute(marked).first() is not None


def _forget_keys(connection: Connection, activation: str, keys: Collection[str]) -> None:
    for some in chunks({listed_name(key) for key in keys}):
        connection.execute(
            delete(HANDLED).where(HANDLED.c.activation == _marks_of(activation), HANDLED.c.message.in_(some))
        )


def _leased(owner: str, numbers: Sequence[int]) -> ColumnElement[bool]:
    return and_(LIMBO.c.leased_by == stored_name(owner), LIMBO.c.number.in_(numbers))


def _condition(selection: LimboSelection) -> ColumnElement[bool]:
    activation = None if selection.activation is None else stored_name(selection.activation)
    asked = {
        LIMBO.c.state: selection.state,
        LIMBO.c.activation: activation,
        LIMBO.c.jms_conn_id: selection.jms_conn_id,
    }
    destination: ColumnElement[bool] = true()
    if selection.destination is not None:
        # Not LIKE: on SQLite it ignores case, and refuses long patterns.
        start = f"{write_named_destination(selection.destination, ())}&"
        with_options = func.substr(LIMBO.c.destination, 1, len(start)) == start
        destination = or_(LIMBO.c.destination == selection.destination, with_options)
    numbers = true() if selection.numbers is None else LIMBO.c.number.in_(sorted(selection.numbers))
    return and_(
        numbers, destination, *(column == value for column, value in asked.items() if value is not None)
    )


def _drop(connection: Any, numbers: Sequence[int]) -> None:
    connection.execute(delete(LIMBO_CONTENT).where(LIMBO_CONTENT.c.number.in_(numbers)))
    connection.execute(delete(LIMBO).where(LIMBO.c.number.in_(numbers)))
