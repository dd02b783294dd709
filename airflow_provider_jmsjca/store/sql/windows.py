"""Limits by age and number for tables with one row for each activation and message."""

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
    """Yield the values in lists of at most `size`, so that each list fits into one statement."""
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
    further_tables: tuple[Table, ...] = (),
) -> int:
    """Delete rows that exceed a maximum number or age, in one transaction for each activation.

    Args:
        database: The database.
        moment: Column with the time of a row. The rows of its table are deleted; this table must have the
            columns `activation` and `message`.
        now: The current time.
        keep: Number of rows to keep for each activation, the latest. Rows as old as the oldest of them are
            kept too.
        max_age: Maximum age of a row.
        further_tables: Further tables. Their rows are deleted if the table of `moment` has no row left for
            the same activation and message.

    Returns:
        The number of rows deleted from the table of `moment`.
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
            for each in further_tables if deleted else ():
                left = select(table.c.message).where(own)
                connection.execute(
                    delete(each).where(each.c.activation == activation, each.c.message.not_in(left))
                )
        count += deleted
    return count
