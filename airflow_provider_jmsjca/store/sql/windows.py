"""Windows by age and count over a table with a row for each activation and message."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Column, Table, delete, select

from airflow_provider_jmsjca.store.base import to_milliseconds
from airflow_provider_jmsjca.store.sql.database import Database

_T = TypeVar("_T")
_AT_ONCE = 500


def chunks(values: Collection[_T], size: int = _AT_ONCE) -> Iterator[list[_T]]:
    """Yield the values in lists of `size` at most, which a statement can hold."""
    left = iter(values)
    while some := list(itertools.islice(left, size)):
        yield some


def sweep(
    database: Database,
    moment: Column[Any],
    now: datetime,
    *,
    keep: int,
    max_age: timedelta,
    with_it: tuple[Table, ...] = (),
) -> int:
    """Delete the rows of each activation that are too many or too old; one transaction for each activation.

    Args:
        database: Where.
        moment: The column by which rows are old; its table has the columns `activation` and `message`.
        now: The time.
        keep: How many rows of each activation stay; more, if several are as old as the last of them.
        max_age: Rows older than that go.
        with_it: Tables whose rows for the same messages go too.

    Returns:
        How many rows of the first table went.
    """
    table: Any = moment.table
    oldest = to_milliseconds(now - max_age)
    with database.read() as connection:
        activations = list(connection.execute(select(table.c.activation).distinct()).scalars())
    count = 0
    for activation in activations:
        own = table.c.activation == activation
        last_kept = select(moment).where(own).order_by(moment.desc()).limit(1).offset(keep - 1)
        with database.write() as connection:
            least = oldest
            if keep > 0 and (found := connection.execute(last_kept).scalar()) is not None:
                least = max(oldest, found)
            gone = (own & (moment < least)) if keep > 0 else own
            deleted = connection.execute(delete(table).where(gone)).rowcount
            for each in with_it if deleted else ():
                left = select(table.c.message).where(own)
                connection.execute(
                    delete(each).where(each.c.activation == activation, each.c.message.not_in(left))
                )
        count += deleted
    return count
