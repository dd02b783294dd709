"""What is wanted of activations, in a database."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Row, delete, select

from airflow_provider_jmsjca.store.base import (
    ActivationOrder,
    WantedState,
    from_milliseconds,
    listed_name,
    stored_name,
    stored_text,
    to_milliseconds,
)
from airflow_provider_jmsjca.store.sql.database import Database
from airflow_provider_jmsjca.store.sql.tables import ACTIVATION
from airflow_provider_jmsjca.store.sql.windows import chunks


class SqlActivations:
    """`base.Activations` in a database.

    Args:
        database: Whose tables are used.
        where: Host and process, stored with an order.
    """

    def __init__(self, database: Database, where: str) -> None:
        self._database = database
        self._where = stored_text(where)[:250]

    def want(self, activation: str, wanted: WantedState, *, reason: str, asked_by: str) -> None:
        """Store an order; see `base.Activations.want`."""
        row = self._database.insert(ACTIVATION)
        changed = {each.name: row.excluded[each.name] for each in ACTIVATION.c if not each.primary_key}
        statement = row.on_conflict_do_update(
            index_elements=["activation"], set_=changed, where=ACTIVATION.c.wanted != row.excluded.wanted
        )
        since = self._database.now()
        with self._database.write(durable=True) as connection:
            values = {
                "activation": stored_name(activation),
                "wanted": wanted,
                "reason": stored_text(reason),
                "asked_by": stored_text(asked_by),
                "asked_where": self._where,
                "since_at": to_milliseconds(since),
            }
            connection.execute(statement, values)

    def order(self, activation: str) -> ActivationOrder | None:
        """Return what is wanted of an activation; see `base.Activations.order`."""
        query = select(ACTIVATION).where(ACTIVATION.c.activation == listed_name(activation))
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else _order(row)

    def page(self, *, limit: int = 100, after: int = 0) -> list[ActivationOrder]:
        """Return orders; see `base.Activations.page`."""
        query = select(ACTIVATION).order_by(ACTIVATION.c.activation).limit(limit).offset(after)
        with self._database.read() as connection:
            return [_order(row) for row in connection.execute(query)]

    def resume(self, activations: Collection[str]) -> int:
        """Drop orders; see `base.Activations.resume`."""
        count = 0
        with self._database.write(durable=True) as connection:
            for some in chunks({listed_name(each) for each in activations}):
                gone = delete(ACTIVATION).where(ACTIVATION.c.activation.in_(some))
                count += connection.execute(gone).rowcount
        return count


def _order(row: Row[Any]) -> ActivationOrder:
    return ActivationOrder(
        activation=row.activation,
        wanted=WantedState(row.wanted),
        reason=row.reason,
        asked_by=row.asked_by,
        where=row.asked_where,
        since=from_milliseconds(row.since_at),
    )
