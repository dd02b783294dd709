"""Ids of handled messages in a database."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import bindparam, select

from airflow_provider_jmsjca.store.base import KEPT_FOR, KEPT_IDS, stored_name, to_milliseconds
from airflow_provider_jmsjca.store.sql.database import Database
from airflow_provider_jmsjca.store.sql.tables import HANDLED
from airflow_provider_jmsjca.store.sql.windows import chunks, sweep

_AT_ONCE: Final = 64
_PARAMETERS: Final = tuple(f"m{number}" for number in range(_AT_ONCE))


class SqlHandledIds:
    """`base.HandledIds` in a database.

    Args:
        database: Database with the tables.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        of_these = HANDLED.c.message.in_([bindparam(name) for name in _PARAMETERS])
        self._known = database.prepare(
            select(HANDLED.c.message).where(HANDLED.c.activation == bindparam("a"), of_these)
        )
        row = database.insert(HANDLED)
        self._add = database.prepare(
            row.on_conflict_do_update(
                index_elements=["activation", "message"], set_={"handled_at": row.excluded.handled_at}
            )
        )

    def known(self, activation: str, messages: Collection[str]) -> frozenset[str]:
        """Return the messages that were handled; see `base.HandledIds.known`."""
        names = {stored_name(message): message for message in messages}
        owner = stored_name(activation)
        found: set[str] = set()
        if not names:
            return frozenset()
        with self._database.read() as connection:
            for some in chunks(names, _AT_ONCE):
                # The last name is repeated up to a fixed number of parameters, so that one compiled statement
                # serves any number of names.
                row = dict(zip(_PARAMETERS, [*some, *[some[-1]] * (_AT_ONCE - len(some))], strict=True))
                known = self._known.execute(connection, [row | {"a": owner}])
                found.update(names[name] for name in known.scalars())
        return frozenset(found)

    def add(self, activation: str, messages: Collection[str], now: datetime) -> None:
        """Store that these messages were handled; see `base.HandledIds.add`."""
        owner, at = stored_name(activation), to_milliseconds(now)
        names = sorted({stored_name(message) for message in messages})
        if names:
            rows = [{"activation": owner, "message": name, "handled_at": at} for name in names]
            with self._database.write() as connection:
                self._add.execute(connection, rows)

    def sweep(self, now: datetime, *, keep: int = KEPT_IDS, max_age: timedelta = KEPT_FOR) -> int:
        """Delete ids beyond a number or an age; see `base.HandledIds.sweep`."""
        return sweep(self._database, HANDLED.c.handled_at, now, keep=keep, max_age=max_age)
