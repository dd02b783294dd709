"""List commands and the page, with 100,000 dead letters on a broker, 500 activations and 50 batches.

Own time is processor time of the process that runs a command; the rest is the wait for broker and store.

A user waits for a new process each time, so `fresh` is the first run in a process, with its imports. That
process is a copy of one in which `airflow connections list` has run, because each command of Airflow costs as
much. The modules are compiled before, as pip does it. Further runs in the same process show the work alone.
Each command has three processes, and the least figures count. The first view of the page is the first request
that this package serves in an API server.
"""

from __future__ import annotations

import compileall
import contextlib
import functools
import io
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import airflow_provider_jmsjca
from airflow_provider_jmsjca import open_store
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.spool.rows import Row
from airflow_provider_jmsjca.spool.spool import SpoolBatch
from airflow_provider_jmsjca.store.base import ActivationKind, RunReport, RunStatus
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.bench.rates import BODY
from tests.servers.broker import Broker

LETTERS: Final = 100_000
ACTIVATIONS: Final = 500
MOST_MILLISECONDS: Final = 300.0
"""Own time that a command or a view may take."""
_QUEUES: Final = 20
_BATCHES: Final = 50
_TIMES: Final = 3
_CONN_ID: Final = "bench_operations"
_REASONS: Final = ("ValueError", "KeyError", "TimeoutError")
_COMMANDS: Final = "commands"
_PAGE: Final = "page"
_COMPILES_EACH_TIME: Final = "PYTHONDONTWRITEBYTECODE"
"""Environment variable; where it is set, each new process compiles the modules that it imports."""


@contextlib.contextmanager
def installation() -> Iterator[None]:
    """Set up an Airflow with a store of 500 activations in the environment, during the block."""
    with tempfile.TemporaryDirectory(prefix="jms-operations-") as name:
        folder = Path(name)
        url = f"sqlite:///{folder / 'store.db'}"
        with contextlib.closing(open_store(url)) as store:
            store.activations.report([_run(number) for number in range(ACTIVATIONS)])
        spool = folder / "spool"
        for number in range(_BATCHES):
            _store_batch(spool, number)
        with _environment(
            AIRFLOW_HOME=name,
            AIRFLOW__CORE__LOAD_EXAMPLES="False",
            AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS="admin:admin",
            AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{folder / 'airflow.db'}",
            AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
            AIRFLOW__API_AUTH__JWT_SECRET=uuid.uuid4().hex * 2,
            AIRFLOW__API__SECRET_KEY=uuid.uuid4().hex,
            AIRFLOW__JMSJCA__STORE_URL=url,
            AIRFLOW__JMSJCA__SPOOL_PATH=str(spool),
        ):
            subprocess.run(
                [sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True
            )
            yield


def report(broker: Broker, letters: int = LETTERS) -> bool:
    """Print a line for each command and view, inside of `installation`; return whether the goals are met."""
    compileall.compile_dir(Path(airflow_provider_jmsjca.__file__).parent, quiet=1)
    queue = f"bench.dlq.{uuid.uuid4().hex[:8]}"
    began = time.monotonic()
    _fill(broker, queue, letters)
    print(f"  {letters:,} dead letters sent in {time.monotonic() - began:.0f} s", flush=True)
    print(f"  own time in ms, goal {MOST_MILLISECONDS:.0f}: fresh, later runs; waiting", flush=True)
    here = ["--conn-id", _CONN_ID]
    judged = [
        ["activations", "list"],
        ["limbo", "list"],
        ["attempts", "list"],
        ["indoubt", "list"],
        ["spool", "list"],
        ["queues", "list"],
        ["queues", "list", *here],
        ["queues", "list", *here, "--used"],
        ["queues", "browse", queue, *here],
        ["dlq", "list", *here],
        ["dlq", "list", queue, *here],
        *(["dlq", "show", queue, each, *here] for each in _ids(broker, queue)),
    ]
    # Browsing far behind reads all messages before, and doctor examines everything: no goal for them.
    others = [["queues", "browse", queue, *here, "--after", str(letters * 9 // 10)], ["doctor", *here]]
    with _connection(broker):
        met = [_measured(_COMMANDS, judged), _measured(_PAGE, [queue])]
        _measured(_COMMANDS, others, times=1, judged=False)
    return all(met)


def _store_batch(spool: Path, number: int) -> None:
    message = Row(JmsMessage.text(BODY), 1_700_000_000_000_000)
    with SpoolBatch(spool, f"b{number}", source="queue://orders", activation=f"orders.{number}") as batch:
        batch.seal([message])
        batch.complete()


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


def _ids(broker: Broker, queue: str) -> list[str]:
    """Return the ids of the first letter and of the 200th; none where the broker gives messages none."""
    settings = broker.settings(management_url=_management_url(broker))
    with (
        contextlib.closing(connect(settings)) as connection,
        contextlib.closing(connection.administration()) as administration,
    ):
        found = administration.browse(queue, limit=200)
    return [each.message_id for each in (found[0], found[-1]) if each.message_id is not None]


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
        last_error=f"ValueError: order {number} is refused",
        last_error_at=now,
    )


def _management_url(broker: Broker) -> str | None:
    port = broker.ports.get("management")
    return None if port is None else f"http://{broker.address()[0]}:{port}"


@contextlib.contextmanager
def _connection(broker: Broker) -> Iterator[None]:
    host, port = broker.address()
    url = _management_url(broker)
    connection = {
        "conn_type": "jms",
        "host": host,
        "port": port,
        "login": broker.username,
        "password": broker.password,
        "extra": {} if url is None else {"management_url": url},
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


def _measured(
    what: str, given: Sequence[Sequence[str]] | Sequence[str], *, times: int = _TIMES, judged: bool = True
) -> bool:
    """Measure in a new process, print the figures, and return whether they meet the goal.

    Args:
        what: Commands or page.
        given: The arguments of each command; for the page a queue.
        times: Number of processes for each command, and of later runs in each.
        judged: Whether there is a goal.
    """
    process = subprocess.run(
        [sys.executable, "-m", "tests.bench.operations", what, json.dumps(given), str(times)],
        env={name: value for name, value in os.environ.items() if name != _COMPILES_EACH_TIME},
        check=False,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        print(f"  FAILED {what}\n{process.stderr[-2000:]}", flush=True)
        return False
    met = [_printed(each, judged=judged) for each in json.loads(process.stdout.splitlines()[-1])]
    return all(met)


def _printed(found: Mapping[str, Any], *, judged: bool) -> bool:
    met: bool = max(found["own"], found["fresh"]) <= MOST_MILLISECONDS
    verdict = "" if not judged else "met" if met else "NOT MET"
    figures = f"{found['fresh']:7.0f} {found['own']:7.0f}; {found['waiting']:7.0f}"
    print(f"  {verdict:7} {figures}: {found['name']}", flush=True)
    for line in found["errors"]:
        print(f"            {line[:200]}")
    return met


# -- in the process that is measured ----------------------------------------------------------------------


def _main(what: str, given: str, times: str) -> None:
    """Measure commands of `airflow jms`, or the views of the page; print the figures as JSON."""
    arguments = json.loads(given)
    found = _views(*arguments) if what == _PAGE else _commands(arguments, int(times))
    json.dump(list(found), sys.stdout)


def _commands(commands: Sequence[Sequence[str]], times: int) -> Iterator[dict[str, Any]]:
    from airflow import settings  # noqa: PLC0415 - its import takes seconds, and needs a home
    from airflow.cli import cli_parser  # noqa: PLC0415 - as above

    parser = cli_parser.get_parser()

    def run(*words: str) -> None:
        args = parser.parse_args(words)
        args.func(args)

    _timed("", lambda: run("connections", "list"), runs=1)
    for command in commands:
        settings.get_engine().dispose()  # a copy of this process can't use its connections
        work = functools.partial(run, "jms", *command)
        copies = [_in_a_copy(" ".join(command), work, times + 1) for _ in range(times)]
        yield {**min(copies, key=lambda each: each["own"]), "fresh": min(each["fresh"] for each in copies)}


def _in_a_copy(name: str, work: Callable[[], object], runs: int) -> dict[str, Any]:
    """Return what `_timed` returns in a copy of this process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    copy = context.Process(target=lambda: sender.send(_timed(name, work, runs)))
    copy.start()
    sender.close()
    found: dict[str, Any] = receiver.recv()
    copy.join()
    return found


def _views(queue: str) -> Iterator[dict[str, Any]]:
    from airflow.api_fastapi.app import create_app  # noqa: PLC0415 - as above

    from tests.airflow.page.browsing import Browser  # noqa: PLC0415 - as above

    browser = Browser(create_app(apps="core"), "admin")
    views: list[tuple[str, dict[str, str]]] = [
        ("", {}),
        ("findings", {}),
        ("broker-findings", {}),
        ("queues", {"conn_id": _CONN_ID}),
        ("dead-letters", {"conn_id": _CONN_ID}),
        ("dead-letters", {"conn_id": _CONN_ID, "queue": queue}),
    ]

    def get(path: str, parameters: Mapping[str, str]) -> None:
        status = browser.get(path, **parameters).status_code
        if status != HTTPStatus.OK:
            raise SystemExit(f"page /{path} {parameters}: status {status}")

    for path, parameters in views:
        shown = "&".join(f"{name}={value}" for name, value in parameters.items())
        name = f"page /{path}" + (f"?{shown}" if shown else "")
        yield _timed(name, functools.partial(get, path, parameters))


def _timed(name: str, work: Callable[[], object], runs: int = _TIMES + 1) -> dict[str, Any]:
    """Return the own time of the first run and of the quickest later run, and its waits, in milliseconds."""
    found: list[tuple[float, float]] = []
    for _ in range(runs):
        own, began = time.process_time(), time.monotonic()
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            try:
                work()
            except SystemExit as end:
                errors.write("" if end.code is None else f"exit code {end.code}\n")
        own = time.process_time() - own
        found.append((own, time.monotonic() - began - own))
    own, waiting = min(found[1:] or found)
    return {
        "name": name,
        "fresh": 1000 * found[0][0],
        "own": 1000 * own,
        "waiting": 1000 * max(0.0, waiting),
        "errors": errors.getvalue().splitlines(),
    }


if __name__ == "__main__":
    _main(*sys.argv[1:])
