"""The commands of `airflow jms activations`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from datetime import datetime

from airflow.utils.platform import getuser

from airflow_provider_jmsjca.cli.commands import check_choice, echo, one_line_errors, print_page, print_rows
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.store import installed_store
from airflow_provider_jmsjca.operating.activations import (
    ActivationStatus,
    activation_status,
    list_activations,
    request_activation_state,
    resume_activations,
)
from airflow_provider_jmsjca.store.base import ActivationRun, RunStatus, WantedState

# Columns of a table; the other output formats contain every column.
_COLUMNS = ("activation", "state", "owner", "where", "delivered", "committed", "backlog", "oldest", "note")


@one_line_errors
def list_command(args: argparse.Namespace) -> None:
    """Print the runs of activations, and activations without a run for which a state is requested."""
    with contextlib.closing(installed_store()) as store:
        found = list_activations(store, ended=args.ended)
    rows = [row for each in found for row in _rows(each)]
    if args.output == "table":
        rows = [{name: row[name] for name in _COLUMNS} for row in rows]
    print_page(args, rows[args.after : args.after + args.limit + 1])
    if not rows:
        hint = "" if args.ended else "; --ended lists those of the last day too"
        echo(f"note: no activation is registered; each listener and trigger registers when it starts{hint}")


@one_line_errors
def show_command(args: argparse.Namespace) -> None:
    """Print all details of an activation and its runs."""
    with contextlib.closing(installed_store()) as store:
        rows = list(_rows(activation_status(store, args.activation)))
    if args.output in {"json", "yaml"}:
        printed = rows
    else:
        printed = [
            {"property": name, "value": value} for row in rows for name, value in row.items() if value != ""
        ]
    print_rows(printed, args.output)


@one_line_errors
def suspend_command(args: argparse.Namespace) -> None:
    """Suspend activations: their runs continue, but deliver no messages until they are resumed."""
    _request(args, WantedState.SUSPENDED)


@one_line_errors
def drain_command(args: argparse.Namespace) -> None:
    """Drain activations: their runs finish the messages in their handlers, then end."""
    _request(args, WantedState.DRAINED)


@one_line_errors
def stop_command(args: argparse.Namespace) -> None:
    """Stop activations: their runs end."""
    _request(args, WantedState.STOPPED)


@one_line_errors
def resume_command(args: argparse.Namespace) -> None:
    """Withdraw requested states, so that activations consume again."""
    _check_choice(args)
    with contextlib.closing(installed_store()) as store:
        found = resume_activations(store, None if args.all else args.activations)
    sys.stdout.write(f"{len(found)} activations resumed; suspended runs continue, and new runs may consume\n")


def _request(args: argparse.Namespace, wanted: WantedState) -> None:
    _check_choice(args)
    if not args.reason.strip():
        raise ConfigurationError("--reason is empty; expected a reason, which the log and the list show")
    with contextlib.closing(installed_store()) as store:
        names = args.activations
        if args.all:
            names = [each.name for each in list_activations(store)]
        found = request_activation_state(store, names, wanted, reason=args.reason, user=f"user {getuser()}")
    for name in found:
        sys.stdout.write(f"{escaped(name)}: {wanted}; running processes follow within 2 seconds\n")
    if not found:
        echo(f"note: no activation is registered, so none is {wanted}; new ones start as usual")


def _check_choice(args: argparse.Namespace) -> None:
    check_choice(
        args,
        things="activations",
        chosen=bool(args.activations),
        ids=args.activations,
        ways="their names, as airflow jms activations list shows them",
    )


def _rows(status: ActivationStatus) -> Iterator[dict[str, str]]:
    """Yield a row for each run, or one row for an activation without runs."""
    order = status.order
    ordered = {
        "wanted": "" if order is None else str(order.wanted),
        "wanted_since": "" if order is None else _time(order.since),
        "reason": "" if order is None else order.reason,
        "asked_by": "" if order is None else order.asked_by,
        "asked_where": "" if order is None else order.where,
    }
    request_note = "" if order is None else f"{order.wanted} by {order.asked_by}: {order.reason}"
    if not status.runs:
        yield _NOTHING | {"activation": status.name, "state": "no run", "note": request_note} | ordered
    for run in status.runs:
        yield _row(run, request_note) | ordered


def _row(run: ActivationRun, request_note: str) -> dict[str, str]:
    report = run.report
    old = "" if run.values_at is None else f"values of {_time(run.values_at)}"
    if report.status is RunStatus.LOST:
        note = "; ".join(filter(None, (f"no heartbeat received any more: {old}", request_note)))
    else:
        note = "; ".join(filter(None, (old, request_note or report.last_error)))
    return {
        "activation": report.activation,
        "title": report.title,
        "kind": str(report.kind),
        "state": str(report.status),
        "since": _time(report.since),
        "owner": report.owner,
        "where": f"{run.host}/{run.pid}",
        "broker": report.broker,
        "destination": report.destination,
        "spec_digest": report.spec_digest,
        "started": _time(report.started_at),
        "heartbeat": _time(run.seen_at),
        "values_at": _time(run.values_at),
        "delivered": str(report.delivered),
        "committed": str(report.committed),
        "rolled_back": str(report.rolled_back),
        "moved": str(report.moved),
        "deleted": str(report.deleted),
        "dead_lettered": str(report.dead_lettered),
        "in_flight": str(report.in_flight),
        "backlog": "" if report.backlog is None else str(report.backlog),
        "oldest": _time(report.oldest_at),
        "last_message": _time(report.last_message_at),
        "last_error": report.last_error,
        "last_error_at": _time(report.last_error_at),
        "note": note,
    }


_NOTHING = dict.fromkeys(
    (
        "activation", "title", "kind", "state", "since", "owner", "where", "broker", "destination",
        "spec_digest", "started", "heartbeat", "values_at", "delivered", "committed", "rolled_back", "moved",
        "deleted", "dead_lettered", "in_flight", "backlog", "oldest", "last_message", "last_error",
        "last_error_at", "note",
    ),
    "",
)  # fmt: skip


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat(timespec="seconds")
