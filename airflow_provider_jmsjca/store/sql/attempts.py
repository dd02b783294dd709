"""Counts of attempts, in a database."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal_column,
    select,
    tuple_,
    update,
)

from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.store.base import (
    KEPT_ATTEMPTS,
    KEPT_FOR,
    KEPT_HISTORY,
    AttemptEntry,
    AttemptSelection,
    MessageAttempts,
    from_milliseconds,
    listed_name,
    stored_name,
    stored_text,
    to_milliseconds,
)
from airflow_provider_jmsjca.store.sql.database import Database
from airflow_provider_jmsjca.store.sql.tables import ATTEMPT, ATTEMPT_HISTORY
from airflow_provider_jmsjca.store.sql.windows import chunks, sweep

_OF_MESSAGE: Final = (ATTEMPT.c.activation == bindparam("a")) & (ATTEMPT.c.message == bindparam("m"))
_OF_HISTORY: Final = (ATTEMPT_HISTORY.c.activation == bindparam("a")) & (
    ATTEMPT_HISTORY.c.message == bindparam("m")
)
# Messages counted at a given time, to read the counts after `begin`. The result may include messages of
# another call in the same millisecond.
_COUNTED_AGAIN: Final = select(ATTEMPT.c.message, ATTEMPT.c.attempts).where(
    ATTEMPT.c.activation == bindparam("a"),
    ATTEMPT.c.last_at == bindparam("at"),
    ATTEMPT.c.attempts > bindparam("more"),
)


class SqlAttempts:
    """`base.Attempts` in a database.

    A first attempt is stored as one row. A later attempt changes that row and adds a row of history. Every
    call writes its rows in the order of the message names. So one process may wait for another, but two
    processes never wait for each other.

    Args:
        database: Database with the tables.
        where: Host and process, for the history.
    """

    def __init__(self, database: Database, where: str) -> None:
        self._database = database
        self._process = stored_text(where)[:250]
        row = database.insert(ATTEMPT)
        self._begin = database.prepare(
            row.on_conflict_do_update(
                index_elements=["activation", "message"],
                set_={
                    "attempts": ATTEMPT.c.attempts + literal_column("1"),
                    "last_at": row.excluded.last_at,
                    "last_where": row.excluded.last_where,
                    "open": row.excluded.open,
                    "doubtful": and_(ATTEMPT.c.open, ATTEMPT.c.last_where != row.excluded.last_where),
                },
            )
        )
        self._count_again = database.prepare(_COUNTED_AGAIN)
        self._forget = database.prepare(delete(ATTEMPT).where(_OF_MESSAGE))
        self._forget_history = database.prepare(delete(ATTEMPT_HISTORY).where(_OF_HISTORY))
        self._any_history = database.prepare(
            select(func.max(ATTEMPT_HISTORY.c.attempt)).where(ATTEMPT_HISTORY.c.activation == bindparam("a"))
        )
        entry = database.insert(ATTEMPT_HISTORY)
        self._entry = entry.on_conflict_do_update(
            index_elements=["activation", "message", "attempt"],
            set_={
                "exception_class": entry.excluded.exception_class,
                "exception_message": entry.excluded.exception_message,
            },
        )

    def begin(self, activation: str, messages: Collection[str], now: datetime) -> dict[str, int]:
        """Count an attempt at each of these messages; see `base.Attempts.begin`."""
        names = {stored_name(message): message for message in messages}
        if not names:
            return {}
        owner, at = stored_name(activation), to_milliseconds(now)
        rows = [
            {
                "activation": owner,
                "message": name,
                "attempts": 1,
                "first_at": at,
                "first_where": self._process,
                "last_at": at,
                "last_where": self._process,
                "open": True,
                "doubtful": False,
            }
            for name in sorted(names)
        ]
        with self._database.write() as connection:
            self._begin.execute(connection, rows)
            found = self._count_again.execute(connection, [{"a": owner, "at": at, "more": 1}])
            again = {row.message: row.attempts for row in found if row.message in names}
            if again:
                self._note(
                    connection,
                    [self._history_row(owner, name, number, at) for name, number in again.items()],
                )
                self._cut(connection, owner, again)
        return {message: again.get(name, 1) for name, message in names.items()}

    def _counts(self, connection: Connection, owner: str, names: Collection[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for some in chunks(names):
            query = select(ATTEMPT.c.message, ATTEMPT.c.attempts).where(
                ATTEMPT.c.activation == owner, ATTEMPT.c.message.in_(some)
            )
            found.update((name, number) for name, number in connection.execute(query))
        return found

    def _history_row(
        self, owner: str, name: str, attempt: int, at: int, failure: Failure | None = None
    ) -> dict[str, Any]:
        return {
            "activation": owner,
            "message": name,
            "attempt": attempt,
            "begun_at": at,
            "begun_where": self._process,
            "exception_class": "" if failure is None else stored_text(failure.class_name),
            "exception_message": "" if failure is None else stored_text(failure.message),
        }

    def _note(self, connection: Connection, rows: list[dict[str, Any]]) -> None:
        if rows:
            connection.execute(self._entry, sorted(rows, key=lambda row: str(row["message"])))

    def _cut(self, connection: Connection, owner: str, counts: Mapping[str, int]) -> None:
        """Delete the history of messages, except the first attempt and the latest `KEPT_HISTORY` attempts.

        Args:
            connection: The open transaction.
            owner: Stored name of the activation.
            counts: Number of attempts so far, by stored message id.
        """
        for name, number in counts.items():
            if number > KEPT_HISTORY + 1:
                connection.execute(
                    delete(ATTEMPT_HISTORY).where(
                        ATTEMPT_HISTORY.c.activation == owner,
                        ATTEMPT_HISTORY.c.message == name,
                        ATTEMPT_HISTORY.c.attempt > 1,
                        ATTEMPT_HISTORY.c.attempt <= number - KEPT_HISTORY,
                    )
                )

    def take_back(self, activation: str, messages: Collection[str]) -> None:
        """Undo the last attempt at each message; see `base.Attempts.take_back`."""
        names = sorted({stored_name(message) for message in messages})
        if not names:
            return
        owner = stored_name(activation)
        with self._database.write() as connection:
            counts = self._counts(connection, owner, names)
            gone = [(owner, name, number) for name, number in counts.items()]
            key = tuple_(ATTEMPT_HISTORY.c.activation, ATTEMPT_HISTORY.c.message, ATTEMPT_HISTORY.c.attempt)
            for last in chunks(gone):
                connection.execute(delete(ATTEMPT_HISTORY).where(key.in_(last)))
            for some in chunks(names):
                these = (ATTEMPT.c.activation == owner) & ATTEMPT.c.message.in_(some)
                connection.execute(delete(ATTEMPT).where(these, ATTEMPT.c.attempts <= 1))
                # If the attempt before was in doubt, it is in doubt again.
                nobody: ColumnElement[str] = literal_column("''")
                before = {
                    "attempts": ATTEMPT.c.attempts - 1,
                    "open": ATTEMPT.c.doubtful,
                    "doubtful": False,
                    "last_where": case((ATTEMPT.c.doubtful, nobody), else_=ATTEMPT.c.last_where),
                }
                connection.execute(update(ATTEMPT).where(these).values(**before))

    def failed(self, activation: str, failures: Mapping[str, Failure]) -> None:
        """Store the exceptions of the last attempts; see `base.Attempts.failed`."""
        owner, names = stored_name(activation), {stored_name(each): each for each in failures}
        with self._database.write() as connection:
            for some in chunks(names):
                query = select(ATTEMPT).where(ATTEMPT.c.activation == owner, ATTEMPT.c.message.in_(some))
                rows = [
                    self._history_row(
                        owner,
                        row.message,
                        row.attempts,
                        row.last_at if row.attempts > 1 else row.first_at,
                        failures[names[row.message]],
                    )
                    for row in connection.execute(query)
                ]
                self._note(connection, rows)
                these = (ATTEMPT.c.activation == owner) & ATTEMPT.c.message.in_(some)
                connection.execute(update(ATTEMPT).where(these).values(open=False))

    def forget(self, activation: str, messages: Collection[str]) -> None:
        """Delete the attempts at these messages; see `base.Attempts.forget`."""
        names = sorted({stored_name(message) for message in messages})
        owner = stored_name(activation)
        if not names:
            return
        rows = [{"a": owner, "m": name} for name in names]
        with self._database.write() as connection:
            self._forget.execute(connection, rows)
            if self._any_history.execute(connection, [{"a": owner}]).scalar() is not None:
                self._forget_history.execute(connection, rows)

    def doubtful(self, activation: str, messages: Collection[str]) -> frozenset[str]:
        """Return the messages in doubt; see `base.Attempts.doubtful`."""
        names = {stored_name(message): message for message in messages}
        found: set[str] = set()
        with self._database.read() as connection:
            for some in chunks(names):
                query = select(ATTEMPT.c.message).where(
                    ATTEMPT.c.activation == stored_name(activation),
                    ATTEMPT.c.message.in_(some),
                    ATTEMPT.c.doubtful,
                )
                found.update(names[name] for name in connection.execute(query).scalars())
        return frozenset(found)

    def ended(self, activation: str) -> None:
        """Store that this process has ended its attempts; see `base.Attempts.ended`."""
        self.resolve(AttemptSelection(activation=stored_name(activation), open_at=frozenset({self._process})))

    def activations(self) -> frozenset[str]:
        """Return the names of the activations with stored attempts; see `base.Attempts.activations`."""
        with self._database.read() as connection:
            return frozenset(connection.scalars(select(ATTEMPT.c.activation).distinct()))

    def open_at(self) -> frozenset[str]:
        """Return the processes with attempts of unknown outcome; see `base.Attempts.open_at`."""
        with self._database.read() as connection:
            query = select(ATTEMPT.c.last_where).where(ATTEMPT.c.open).distinct()
            return frozenset(connection.execute(query).scalars())

    def reset(self, selection: AttemptSelection) -> int:
        """Delete the attempts at these messages; see `base.Attempts.reset`."""
        chosen = _process(selection)
        same = exists().where(
            ATTEMPT.c.activation == ATTEMPT_HISTORY.c.activation,
            ATTEMPT.c.message == ATTEMPT_HISTORY.c.message,
            chosen,
        )
        with self._database.write(durable=True) as connection:
            connection.execute(delete(ATTEMPT_HISTORY).where(same))
            return connection.execute(delete(ATTEMPT).where(chosen)).rowcount

    def resolve(self, selection: AttemptSelection) -> int:
        """Mark the last attempts at these messages as ended; see `base.Attempts.resolve`."""
        with self._database.write() as connection:
            change = update(ATTEMPT).where(_process(selection), ATTEMPT.c.open).values(open=False)
            return connection.execute(change).rowcount

    def page(
        self,
        activation: str | None = None,
        *,
        at_least: int = 1,
        limit: int = 100,
        after: int = 0,
        open_only: bool = False,
    ) -> list[MessageAttempts]:
        """Return messages by number of attempts; see `base.Attempts.page`."""
        query = (
            select(ATTEMPT)
            .where(ATTEMPT.c.attempts >= at_least)
            .order_by(ATTEMPT.c.attempts.desc(), ATTEMPT.c.last_at.desc(), ATTEMPT.c.message)
            .limit(limit)
            .offset(after)
        )
        if activation is not None:
            query = query.where(ATTEMPT.c.activation == listed_name(activation))
        if open_only:
            query = query.where(ATTEMPT.c.open)
        with self._database.read() as connection:
            return [
                MessageAttempts(
                    activation=row.activation,
                    message=row.message,
                    attempts=row.attempts,
                    first_at=from_milliseconds(row.first_at),
                    last_at=from_milliseconds(row.last_at),
                    where=row.last_where,
                    open=row.open,
                )
                for row in connection.execute(query)
            ]

    def history(self, activation: str, message: str) -> list[AttemptEntry]:
        """Return the attempts at a message; see `base.Attempts.history`."""
        owner, name = listed_name(activation), listed_name(message)
        columns = ATTEMPT_HISTORY.c
        query = (
            select(ATTEMPT_HISTORY)
            .where(columns.activation == owner, columns.message == name)
            .order_by(columns.attempt)
        )
        first = select(ATTEMPT).where(ATTEMPT.c.activation == owner, ATTEMPT.c.message == name)
        with self._database.read() as connection:
            entries = [
                AttemptEntry(
                    attempt=row.attempt,
                    at=from_milliseconds(row.begun_at),
                    where=row.begun_where,
                    exception_class=row.exception_class,
                    exception_message=row.exception_message,
                )
                for row in connection.execute(query)
            ]
            known = connection.execute(first).first()
        if known is not None and (not entries or entries[0].attempt > 1):
            at = from_milliseconds(known.first_at)
            entries.insert(0, AttemptEntry(attempt=1, at=at, where=known.first_where))
        return entries

    def sweep(self, now: datetime, *, keep: int = KEPT_ATTEMPTS, max_age: timedelta = KEPT_FOR) -> int:
        """Delete the attempts at messages beyond a number or an age; see `base.Attempts.sweep`."""
        return sweep(
            self._database,
            ATTEMPT.c.last_at,
            now,
            keep=keep,
            max_age=max_age,
            further_tables=(ATTEMPT_HISTORY,),
        )


def _process(selection: AttemptSelection) -> ColumnElement[bool]:
    chosen = [ATTEMPT.c.attempts >= selection.at_least]
    if selection.activation is not None:
        chosen.append(ATTEMPT.c.activation == selection.activation)
    if selection.message is not None:
        chosen.append(ATTEMPT.c.message == selection.message)
    if selection.open_at is not None:
        chosen += [ATTEMPT.c.open, ATTEMPT.c.last_where.in_(sorted(selection.open_at))]
    return and_(*chosen)
