"""`python -m tests.servers up`: real brokers for whoever sits at the keyboard; `COMMAND --help` says more."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from tests.servers.broker import Broker, variable_of
from tests.servers.catalogue import BROKERS, make_broker
from tests.servers.errors import ServerError, ServerUnavailableError
from tests.servers.folders import run_folder
from tests.servers.java import spark_java_home

_COLUMNS = ("name", "state", "stomp", "stomp+ssl", "user", "password in", "Java clients")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except ServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: what was being started has been stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(
        name: str, command: Callable[[argparse.Namespace], int], help_text: str
    ) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=help_text, description=help_text)
        found.set_defaults(command=command)
        return found

    for name, command, help_text in (
        ("up", _up, "start brokers and leave them running"),
        ("down", _down, "stop brokers that `up` started; their port, password and messages stay"),
        ("fetch", _fetch, "download what brokers need, start nothing"),
    ):
        add(name, command, help_text).add_argument(
            "brokers", nargs="*", default=list(BROKERS), metavar="broker", help=", ".join(BROKERS)
        )
    add("status", _status, "show the brokers that `up` started")
    add("connection", _connection, "print the Airflow connection to a broker that `up` started").add_argument(
        "broker", choices=list(BROKERS)
    )
    add("java", _java, "print a JAVA_HOME that Spark can use")
    run = add("run", _run, "start brokers, run a command that finds them in its environment, stop them")
    run.add_argument(
        "--broker", action="append", dest="brokers", choices=list(BROKERS), help="all by default"
    )
    run.add_argument("argv", nargs="+", metavar="command", help="after --")
    return parser


def _folder() -> Path:
    return run_folder() / "brokers"


def _ours(names: Sequence[str] | None, *, guarded: bool, folder: Path) -> list[Broker]:
    unknown = [name for name in names or () if name not in BROKERS]
    if unknown:
        raise ServerError(f"unknown broker: {', '.join(unknown)}; there are {', '.join(BROKERS)}")
    return [make_broker(name, folder / name, guarded=guarded) for name in names or BROKERS]


def _started(brokers: Sequence[Broker]) -> list[Broker]:
    """Start brokers side by side; those this machine can't have are named and left out."""

    def start(broker: Broker) -> None:
        print(f"{broker.name}: starting ...\n", end="", flush=True)
        try:
            broker.start()
        except ServerUnavailableError as error:
            print(f"{error}\n", end="", flush=True)

    with ThreadPoolExecutor(max(1, len(brokers))) as pool:
        starts = [pool.submit(start, broker) for broker in brokers]
        try:
            wait(starts)
        except KeyboardInterrupt:
            _kill(brokers, starts)
            raise
    errors = [error for error in (one.exception() for one in starts) if error is not None]
    running = [broker for broker in brokers if broker.running]
    if errors:
        for broker in running:
            broker.stop()
        for error in errors:
            if not isinstance(error, ServerError):
                raise error
        raise ServerError("\nerror: ".join(map(str, errors)))
    return running


def _kill(brokers: Sequence[Broker], starts: Sequence[Future[None]]) -> None:
    """End brokers while they are being started."""
    over = False
    while not over:
        # A killed broker ends its start; one that was still downloading is launched a moment later.
        over = not wait(starts, timeout=0.2).not_done
        for broker in brokers:
            broker.kill()


def _fetch(options: argparse.Namespace) -> int:
    for broker in _ours(options.brokers, guarded=False, folder=_folder()):
        broker.fetch()
        print(f"{broker.name}: complete")
    return 0


def _up(options: argparse.Namespace) -> int:
    # Guarded until all are up: whatever ends this process before leaves nothing half started.
    brokers = _ours(options.brokers, guarded=True, folder=_folder())
    running = [broker for broker in brokers if broker.adopt()]
    for broker in _started([broker for broker in brokers if broker not in running]):
        broker.release()
    for broker in running:
        broker.wait_ready()  # another `up` may have started it a moment ago
    _table([broker for broker in brokers if broker.running])
    return 0


def _down(options: argparse.Namespace) -> int:
    stopped = []
    for broker in _ours(options.brokers, guarded=False, folder=_folder()):
        if not (_folder() / broker.name).exists():
            continue
        broker.adopt()
        if broker.running:
            stopped.append(broker.name)
        broker.stop()
    print(f"stopped: {', '.join(stopped) or 'nothing was running'}")
    return 0


def _status(options: argparse.Namespace) -> int:
    del options
    brokers = [make_broker(name, _folder() / name) for name in BROKERS if (_folder() / name).exists()]
    for broker in brokers:
        broker.adopt()
    _table(brokers)
    return 0 if any(broker.running for broker in brokers) else 3


def _connection(options: argparse.Namespace) -> int:
    broker = make_broker(options.broker, _folder() / options.broker)
    broker.adopt()
    if not broker.running:
        raise ServerError(f"{broker.name} isn't running: python -m tests.servers up {broker.name}")
    host, port = broker.address()
    connection = {"conn_type": "jms", "host": host, "port": port}
    print(json.dumps(connection | {"login": broker.username, "password": broker.password}))
    return 0


def _java(options: argparse.Namespace) -> int:
    del options
    print(spark_java_home())
    return 0


def _run(options: argparse.Namespace) -> int:
    folder = run_folder() / f"brokers-{os.getpid()}"
    brokers = _started(_ours(options.brokers, guarded=True, folder=folder))
    try:
        environment = dict(os.environ)
        for broker in brokers:
            environment |= environment_of(broker)
        # Ctrl-C reaches the command as well; it decides when it is done.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with subprocess.Popen(options.argv, env=environment) as command:
            return command.wait()
    finally:
        for broker in brokers:
            broker.stop()
        shutil.rmtree(folder)


def environment_of(broker: Broker) -> dict[str, str]:
    """Return the environment variables that name a running broker; see `RunningBroker`."""
    variable = variable_of(broker.name).removesuffix("_URL")
    found = {f"{variable}_URL": broker.url(), f"{variable}_TLS_URL": broker.url(tls=True)}
    return found | ({f"{variable}_CA": broker.ca_file} if broker.ca_file else {})


def _table(brokers: Sequence[Broker]) -> None:
    rows = [_COLUMNS]
    for broker in brokers:
        plain, tls = broker.address(), broker.address(tls=True)
        rows.append(
            (
                broker.name,
                f"running, pid {broker.pid}" if broker.running else "stopped",
                f"stomp://{plain[0]}:{plain[1]}",
                f"stomp+ssl://{tls[0]}:{tls[1]}",
                broker.username,
                str(broker.password_file),
                f"tcp://{plain[0]}:{broker.ports['openwire']}" if "openwire" in broker.ports else "",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
