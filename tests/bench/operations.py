"""The list commands of an operator, with 100,000 dead letters on the broker and 500 activations in the store.

Own time is processor time of this process; the rest of a command is the wait for broker and store. Importing
Airflow is left out: every command of Airflow pays for it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from airflow_provider_jmsjca import open_store
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.store.base import ActivationKind, RunReport, RunStatus
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.bench.rates import BODY
from tests.servers.broker import Broker

LETTERS: Final = 100_000
ACTIVATIONS: Final = 500
MOST_MILLISECONDS: Final = 300.0
"""Own time that a command may take."""
_QUEUES: Final = 20
_TIMES: Final = 3
_CONN_ID: Final = "bench_operations"
_REASONS: Final = ("ValueError", "KeyError", "TimeoutError")


def report(broker: Broker, letters: int = LETTERS) -> bool:
    """Print a line for each command; return whether each stays below the goal."""
    name = f"bench.dlq.{uuid.uuid4().hex[:8]}"
    began = time.monotonic()
    _fill(broker, name, letters)
    print(f"  {letters:,} dead letters sent in {time.monotonic() - began:.0f} s", flush=True)
    with _connection(broker):
        met = [
            _measured(*command)
            for command in (
                ("dlq", "list", name, "--conn-id", _CONN_ID),
                ("queues", "list", "--conn-id", _CONN_ID),
                ("queues", "browse", name, "--conn-id", _CONN_ID),
                ("queues", "browse", name, "--conn-id", _CONN_ID, "--after", str(letters * 9 // 10)),
            )
        ]
    return all(met)


def report_of_activations() -> bool:
    """Print a line for the list of activations; return whether it stays below the goal."""
    with tempfile.TemporaryDirectory(prefix="jms-operations-") as folder:
        url = f"sqlite:///{Path(folder) / 'store.db'}"
        with contextlib.closing(open_store(url)) as store:
            store.activations.report([_run(number) for number in range(ACTIVATIONS)])
        with _environment(AIRFLOW__JMSJCA__STORE_URL=url):
            return _measured("activations", "list")


def _fill(broker: Broker, name: str, letters: int) -> None:
    def outgoing() -> Iterator[Outgoing]:
        for number in range(letters):
            properties = {
                "JMS_Sun_JMSJCA_OriginalDestinationName": f"orders.{number % _QUEUES}",
                "JMS_Sun_JMSJCA_OriginalDestinationType": "javax.jms.Queue",
                "JMS_Sun_JMSJCA_ExceptionClass": _REASONS[number % len(_REASONS)],
                "JMS_Sun_JMSJCA_ExceptionMessage": f"order {number} is refused",
            }
            message = JmsMessage.text(BODY, properties=properties)
            yield Outgoing(destination=Destination.queue(name), message=message)

    with contextlib.closing(connect(broker.settings())) as connection:
        connection.send(outgoing())


def _run(number: int) -> RunReport:
    now = datetime.now(UTC)
    return RunReport(
        activation=f"orders.{number} at stomp://broker:61613",
        run=f"run-{number}",
        kind=ActivationKind.TRIGGER,
        owner=f"asset 'orders.{number}'",
        destination=f"queue://orders.{number}",
        broker="stomp://broker:61613",
        status=RunStatus.UP,
        started_at=now,
        since=now,
    )


@contextlib.contextmanager
def _connection(broker: Broker) -> Iterator[None]:
    host, port = broker.address()
    extra = {}
    if "management" in broker.ports:
        extra["management_url"] = f"http://{host}:{broker.ports['management']}"
    connection = {
        "conn_type": "jms",
        "host": host,
        "port": port,
        "login": broker.username,
        "password": broker.password,
        "extra": extra,
    }
    with _environment(**{f"AIRFLOW_CONN_{_CONN_ID.upper()}": json.dumps(connection)}):
        yield


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _measured(*command: str) -> bool:
    """Run a command several times, print its quickest run, and return whether that is below the goal."""
    from airflow.cli import cli_parser  # noqa: PLC0415 - its import takes seconds, and needs a home

    args = cli_parser.get_parser().parse_args(["jms", *command])
    runs = []
    for _ in range(_TIMES + 1):  # the first one imports
        own, began = time.process_time(), time.monotonic()
        out, err = io.StringIO(), io.StringIO()
        failed = False
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                args.func(args)
            except SystemExit as end:
                failed = bool(end.code)
        own, whole = time.process_time() - own, time.monotonic() - began
        runs.append((own, whole))
    own, whole = (1000 * each for each in min(runs[1:]))
    met = own <= MOST_MILLISECONDS
    shown = " ".join(each for each in command if each not in {"--conn-id", _CONN_ID})
    print(
        f"  {'met    ' if met else 'NOT MET'} own {own:7.0f} ms, waiting {max(0.0, whole - own):7.0f} ms: "
        f"{shown}{' (refused)' if failed else ''}",
        flush=True,
    )
    for line in err.getvalue().splitlines():
        print(f"            {line[:200]}")
    return met
