"""The registry of activations, in a database."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row, Table, delete, select, text

from airflow_provider_jmsjca.store.base import (
    KEPT_ENDED_FOR,
    KEPT_FOR,
    KEPT_RUNS,
    KEPT_SAMPLES,
    KEPT_SAMPLES_FOR,
    SILENT_FOR,
    ActivationKind,
    ActivationOrder,
    ActivationRun,
    ActivationSample,
    RunReport,
    RunStatus,
    WantedState,
    from_milliseconds,
    listed_name,
    stored_name,
    stored_text,
    to_milliseconds,
)
from airflow_provider_jmsjca.store.sql.database import Database
from airflow_provider_jmsjca.store.sql.owners import SqlOwners
from airflow_provider_jmsjca.store.sql.tables import ACTIVATION, ACTIVATION_RUN, ACTIVATION_SAMPLE, OWNER
from airflow_provider_jmsjca.store.sql.windows import chunks

_COUNTS: Final = (
    "delivered", "committed", "rolled_back", "moved", "deleted", "dead_lettered", "in_flight", "backlog",
)  # fmt: skip
# Columns updated by later reports; the others keep their values.
_CHANGES: Final = (
    "owner", "broker", "status", "since_at", "reported_at", *_COUNTS, "last_message_at", "last_error",
    "last_error_at", "oldest_at",
)  # fmt: skip
_SAMPLED: Final = ("delivered", "committed", "failed", "dead_lettered")
_MINUTE: Final = 60_000


class SqlActivations:
    """`base.Activations` in a database.

    Args:
        database: Database with the tables.
        where: Host and process, stored with requests and runs.
        owners: Sends the heartbeats of this process, and knows the live processes.
    """

    def __init__(self, database: Database, where: str, owners: SqlOwners) -> None:
        self._database = database
        self._process = stored_text(where)[:250]
        self._owners = owners
        sqlite = database.is_sqlite
        changes = {name: f"excluded.{name}" for name in _CHANGES}
        self._upsert = text(_upsert(ACTIVATION_RUN, "run", changes, sqlite=sqlite))
        table = ACTIVATION_SAMPLE.name
        sums = {name: f"{table}.{name} + excluded.{name}" for name in _SAMPLED}
        # A sample without a backlog changes neither the backlog nor `oldest_at`.
        known = {
            "oldest_at": f"CASE WHEN excluded.backlog IS NULL THEN {table}.oldest_at "
            "ELSE excluded.oldest_at END",
            "backlog": f"COALESCE(excluded.backlog, {table}.backlog)",
        }
        self._add = text(_upsert(ACTIVATION_SAMPLE, "activation, minute_at", sums | known, sqlite=sqlite))
        self._beating = 0

    def request_state(self, activation: str, wanted: WantedState, *, reason: str, asked_by: str) -> None:
        """Store a request; see `base.Activations.request_state`."""
        row = self._database.insert(ACTIVATION)
        changed = {each.name: row.excluded[each.name] for each in ACTIVATION.c if not each.primary_key}
        statement = row.on_conflict_do_update(
            index_elements=["activation"], set_=changed, where=ACTIVATION.c.wanted != row.excluded.wanted
        )
        since = self._database.now()
        with self._database.write(durable=True) as connection:
            values = {
                "activation": listed_name(activation),
                "wanted": wanted,
                "reason": stored_text(reason),
                "asked_by": stored_text(asked_by),
                "asked_where": self._process,
                "since_at": to_milliseconds(since),
            }
            connection.execute(statement, values)

    def order(self, activation: str) -> ActivationOrder | None:
        """Return the requested state of an activation; see `base.Activations.order`."""
        query = select(ACTIVATION).where(ACTIVATION.c.activation == listed_name(activation))
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else _order(row)

    def page(self, *, limit: int = 100, after: int = 0) -> list[ActivationOrder]:
        """Return requests; see `base.Activations.page`."""
        query = select(ACTIVATION).order_by(ACTIVATION.c.activation).limit(limit).offset(after)
        with self._database.read() as connection:
            return [_order(row) for row in connection.execute(query)]

    def resume(self, activations: Collection[str]) -> int:
        """Delete requests; see `base.Activations.resume`."""
        count = 0
        with self._database.write(durable=True) as connection:
            for some in chunks({listed_name(each) for each in activations}):
                gone = delete(ACTIVATION).where(ACTIVATION.c.activation.in_(some))
                count += connection.execute(gone).rowcount
        return count

    def report(self, reports: Collection[RunReport]) -> None:
        """Store the state of runs; see `base.Activations.report`."""
        now = self._database.now()
        if self._beating != os.getpid():
            self._owners.heartbeat(now)
            self._beating = os.getpid()
        own = {
            "process": self._process,
            "host": stored_text(socket.gethostname())[:250],
            "pid": os.getpid(),
            "reported_at": to_milliseconds(now),
        }
        with self._database.write() as connection:
            for some in chunks(reports):
                rows = json.dumps([_row(each) | own for each in some])
                connection.execute(self._upsert, {"rows": rows})

    def orders(self) -> dict[str, ActivationOrder]:
        """Return the requests for this process; see `base.Activations.orders`."""
        own = select(ACTIVATION_RUN.c.activation).where(
            ACTIVATION_RUN.c.process == self._process, ACTIVATION_RUN.c.status != RunStatus.ENDED
        )
        with self._database.read() as connection:
            found = connection.execute(select(ACTIVATION).where(ACTIVATION.c.activation.in_(own)))
            return {row.activation: _order(row) for row in found}

    def runs(self, activations: Collection[str] | None = None) -> list[ActivationRun]:
        """Return runs; see `base.Activations.runs`."""
        seen = OWNER.c.seen_at.label("beat_at")
        query = select(ACTIVATION_RUN, seen).outerjoin(OWNER, OWNER.c.owner == ACTIVATION_RUN.c.process)
        found: list[Row[Any]] = []
        with self._database.read() as connection:
            if activations is None:
                found = list(connection.execute(query))
            else:
                for some in chunks({listed_name(each) for each in activations}):
                    found += connection.execute(query.where(ACTIVATION_RUN.c.activation.in_(some)))
        open_at = {row.process for row in found if row.status != RunStatus.ENDED}
        living = self._owners.live(open_at, self._database.now()) if open_at else frozenset()
        found.sort(key=lambda row: (row.activation, row.started_at, row.run))
        return [_run(row, lives=row.process in living) for row in found]

    def add_samples(self, samples: Collection[ActivationSample]) -> None:
        """Add samples; see `base.Activations.add_samples`."""
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        for each in samples:
            row = _sample_row(each)
            before = rows.setdefault((row["activation"], row["minute_at"]), row)
            if before is not row:
                before |= {name: before[name] + row[name] for name in _SAMPLED}
                if row["backlog"] is not None:
                    before |= {"backlog": row["backlog"], "oldest_at": row["oldest_at"]}
        # Sorted, because processes that lock rows in the same order can't deadlock.
        ordered = [row for _, row in sorted(rows.items())]
        with self._database.write() as connection:
            for some in chunks(ordered):
                connection.execute(self._add, {"rows": json.dumps(some)})

    def samples(self, activation: str, since: datetime) -> list[ActivationSample]:
        """Return samples; see `base.Activations.samples`."""
        table = ACTIVATION_SAMPLE.c
        query = select(ACTIVATION_SAMPLE).where(
            table.activation == listed_name(activation), table.minute_at >= _minute(since)
        )
        with self._database.read() as connection:
            return [_sample(row) for row in connection.execute(query.order_by(table.minute_at))]

    def _sweep_samples(self, now: datetime, keep: int, kept_for: timedelta) -> None:
        minute = ACTIVATION_SAMPLE.c.minute_at
        beyond = select(minute).order_by(minute.desc()).limit(1).offset(keep)
        with self._database.write() as connection:
            latest = connection.execute(beyond).scalar()
            oldest = to_milliseconds(now - kept_for)
            old = minute < oldest if latest is None else (minute < oldest) | (minute <= latest)
            connection.execute(delete(ACTIVATION_SAMPLE).where(old))

    def sweep(
        self,
        *,
        keep: int = KEPT_RUNS,
        max_ended_age: timedelta = KEPT_ENDED_FOR,
        max_lost_age: timedelta = KEPT_FOR,
        max_sample_age: timedelta = KEPT_SAMPLES_FOR,
        keep_samples: int = KEPT_SAMPLES,
    ) -> int:
        """Drop old runs; see `base.Activations.sweep`."""
        now, run = self._database.now(), ACTIVATION_RUN.c
        self._sweep_samples(now, keep_samples, max_sample_age)
        living = select(OWNER.c.owner).where(OWNER.c.seen_at >= to_milliseconds(now - SILENT_FOR))
        ended = run.status == RunStatus.ENDED
        dead = ended | run.process.not_in(living)
        extra = select(run.run).where(dead).order_by(run.reported_at.desc(), run.run).offset(keep)
        if self._database.is_sqlite:
            extra = extra.limit(-1)
        gone = (
            (ended & (run.reported_at < to_milliseconds(now - max_ended_age)))
            | (dead & (run.reported_at < to_milliseconds(now - max_lost_age)))
            | run.run.in_(extra)
        )
        with self._database.write() as connection:
            return connection.execute(delete(ACTIVATION_RUN).where(gone)).rowcount


def _upsert(table: Table, key: str, changes: Mapping[str, str], *, sqlite: bool) -> str:
    """Return a statement that inserts or updates rows; its only parameter is a JSON array of rows.

    One statement can thus store a thousand rows, independently of a database driver's limit of parameters.

    Args:
        table: The table.
        key: Columns of the primary key, separated by commas.
        changes: SQL expressions for the columns to change in a row that exists, by column.
        sqlite: Whether the database is SQLite.
    """
    names = ", ".join(each.name for each in table.c)
    if sqlite:
        values = ", ".join(f"json_extract(value, '$.{each.name}')" for each in table.c)
        rows = f"SELECT {values} FROM json_each(:rows) WHERE true"  # noqa: S608 - names of columns
    else:
        types = ", ".join(f"{each.name} {_postgresql_type(each.type)}" for each in table.c)
        rows = f"SELECT {names} FROM json_to_recordset(CAST(:rows AS json)) AS given({types})"  # noqa: S608
    sets = ", ".join(f"{name} = {expression}" for name, expression in changes.items())
    return f"INSERT INTO {table.name} ({names}) {rows} ON CONFLICT ({key}) DO UPDATE SET {sets}"


def _postgresql_type(kind: Any) -> str:
    return "bigint" if kind.python_type is int else "text"


def _row(report: RunReport) -> dict[str, Any]:
    return {
        "run": report.run,
        "activation": stored_name(report.activation),
        "title": stored_text(report.title or report.activation),
        "kind": report.kind,
        "owner": stored_text(report.owner),
        "broker": stored_text(report.broker),
        "destination": stored_text(report.destination),
        "spec_digest": report.spec_digest,
        "status": report.status,
        "started_at": to_milliseconds(report.started_at),
        "since_at": to_milliseconds(report.since),
        "last_message_at": _optional(report.last_message_at),
        "last_error": stored_text(report.last_error),
        "last_error_at": _optional(report.last_error_at),
        "oldest_at": _optional(report.oldest_at),
    } | {name: getattr(report, name) for name in _COUNTS}


def _minute(moment: datetime) -> int:
    milliseconds = to_milliseconds(moment)
    return milliseconds - milliseconds % _MINUTE


def _sample_row(sample: ActivationSample) -> dict[str, Any]:
    return {
        "activation": stored_name(sample.activation),
        "minute_at": _minute(sample.at),
        "backlog": sample.backlog,
        "oldest_at": _optional(sample.oldest_at),
    } | {name: getattr(sample, name) for name in _SAMPLED}


def _sample(row: Row[Any]) -> ActivationSample:
    return ActivationSample(
        activation=row.activation,
        at=from_milliseconds(row.minute_at),
        backlog=row.backlog,
        oldest_at=_moment(row.oldest_at),
        **{name: getattr(row, name) for name in _SAMPLED},
    )


def _optional(moment: datetime | None) -> int | None:
    return None if moment is None else to_milliseconds(moment)


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else from_milliseconds(milliseconds)


def _run(row: Row[Any], *, lives: bool) -> ActivationRun:
    status = RunStatus(row.status)
    report = RunReport(
        run=row.run,
        activation=row.activation,
        title=row.title,
        kind=ActivationKind(row.kind),
        owner=row.owner,
        broker=row.broker,
        destination=row.destination,
        spec_digest=row.spec_digest,
        status=status if lives or status is RunStatus.ENDED else RunStatus.LOST,
        started_at=from_milliseconds(row.started_at),
        since=from_milliseconds(row.since_at),
        last_message_at=_moment(row.last_message_at),
        last_error=row.last_error,
        last_error_at=_moment(row.last_error_at),
        oldest_at=_moment(row.oldest_at),
        **{name: getattr(row, name) for name in _COUNTS},
    )
    beat = row.beat_at if status is not RunStatus.ENDED and row.beat_at is not None else 0
    return ActivationRun(
        report=report,
        process=row.process,
        host=row.host,
        pid=row.pid,
        seen_at=from_milliseconds(max(row.reported_at, beat)),
    )


def _order(row: Row[Any]) -> ActivationOrder:
    return ActivationOrder(
        activation=row.activation,
        wanted=WantedState(row.wanted),
        reason=row.reason,
        asked_by=row.asked_by,
        where=row.asked_where,
        since=from_milliseconds(row.since_at),
    )
