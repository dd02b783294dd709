"""Flights as JMS messages, through Airflow, into a Spark table: the whole product on real input.

python -m example_dags.demo          50,000 flights
N=all python -m example_dags.demo    all 336,776
KEEP=1 python -m example_dags.demo   leaves broker and Airflow running until Ctrl-C
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from airflow_provider_jmsjca import (
    AcknowledgeMode,
    ConfigurationError,
    Connection,
    Destination,
    JmsConnection,
    JmsError,
    JmsMessage,
    Outgoing,
    connect,
)
from example_dags.demo import flights, report
from example_dags.demo.standalone import Standalone
from tests.servers.activemq import ActiveMQClassic
from tests.servers.errors import ServerError
from tests.servers.folders import ROOT, run_folder
from tests.servers.java import spark_java_home

DAG_ID = "flights_to_spark"
FLIGHTS = Destination.queue("flights")
DEAD_LETTERS = Destination.queue("flights.dlq")
REPORTS = Destination.queue("flights.reports")
DEFAULT_COUNT = 50_000
PUBLISH_CHUNK = 5_000
POLL_SECONDS = 1.0
# Without any progress for this long something is wrong, and waiting longer won't help.
STALL_SECONDS = 150.0


class Demo:
    """One run of the demo, in a folder of its own."""

    def __init__(self, limit: int | None, folder: Path) -> None:
        self.limit = limit
        self.folder = folder
        self.spool = folder / "spool"
        self.table = folder / "warehouse" / "flights"
        self.began = time.monotonic()
        self.timings: list[tuple[str, float]] = []

    def say(self, text: str) -> None:
        """Print one line of progress with the time since the start."""
        print(f"[{time.monotonic() - self.began:5.0f} s] {text}", flush=True)

    def timed(self, what: str, since: float) -> None:
        """Remember how long a step took."""
        self.timings.append((what, time.monotonic() - since))

    def run(self) -> bool:
        """Run it all; `True` if every message is accounted for."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        step = time.monotonic()
        broker = ActiveMQClassic(self.folder / "activemq")
        self.say("Starting ActiveMQ Classic (the first time it is downloaded)")
        broker.fetch()
        try:
            broker.start()
            self.timed("ActiveMQ started", step)
            self.say(f"ActiveMQ {broker.address()[0]}:{broker.address()[1]} is up")
            connection = connect(broker.settings())
            try:
                return self._with_broker(broker, connection)
            finally:
                connection.close()
        finally:
            broker.stop()
            self.say("Stopped ActiveMQ")

    def _with_broker(self, broker: ActiveMQClassic, connection: Connection) -> bool:
        airflow = Standalone(self.folder / "airflow", ROOT / "example_dags", self._environment(broker))
        self.say("Starting airflow standalone with SQLite in a fresh AIRFLOW_HOME")
        step = time.monotonic()
        try:
            # Publishing takes less time than Airflow needs to come up.
            with ThreadPoolExecutor(max_workers=1) as beside:
                starting = beside.submit(airflow.start)
                try:
                    sent = self._publish(connection)
                    starting.result()
                except BaseException:
                    # Leaving the block would wait for it to come up.
                    airflow.stop()
                    raise
            while not airflow.known(DAG_ID):
                time.sleep(POLL_SECONDS)
            self.timed("Airflow started", step)
            self.say(f"Airflow is ready at {airflow.url} (no login); letting the DAG {DAG_ID} run by events")
            step = time.monotonic()
            airflow.unpause(DAG_ID)
            self._watch(broker, airflow, sent)
            self.timed("queue drained into Spark by events", step)
            return self._account(airflow, connection, sent)
        finally:
            airflow.stop()
            self.say("Stopped Airflow")

    def _environment(self, broker: ActiveMQClassic) -> Mapping[str, str]:
        host, port = broker.address()
        spark = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
        jms = {
            "conn_type": "jms",
            "host": host,
            "port": port,
            "login": broker.username,
            "password": broker.password,
        }
        return {
            "AIRFLOW_CONN_JMS_DEFAULT": json.dumps(jms),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
            "JAVA_HOME": str(spark_java_home()),
            "JMS_EXAMPLE_SPOOL": str(self.spool),
            "JMS_EXAMPLE_TABLE": str(self.table),
            # What Airflow itself takes from the environment stays; what would change the demo does not.
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        }

    def _publish(self, connection: Connection) -> int:
        step = time.monotonic()
        sent = 0
        messages = flights.messages(self.limit)
        while chunk := list(islice(messages, PUBLISH_CHUNK)):
            sent += connection.send(Outgoing(destination=FLIGHTS, message=message) for message in chunk)
            if sent % (10 * PUBLISH_CHUNK) == 0 or len(chunk) < PUBLISH_CHUNK:
                self.say(f"Published {sent:,} flights to {FLIGHTS}")
        self.timed(f"{sent:,} flights published and confirmed", step)
        return sent

    def _watch(self, broker: ActiveMQClassic, airflow: Standalone, sent: int) -> None:
        last, changed = "", time.monotonic()
        runs: list[dict[str, Any]] = []
        while True:
            done = report.finished_batches(self.spool)
            stored = sum(sum(batch.stored.values()) for batch in done)
            rejected = sum(batch.rejected for batch in done)
            answer = airflow.runs(DAG_ID)
            # `None`: the API server is busy, and the stall clock goes on.
            runs = runs if answer is None else answer
            states = [run["state"] for run in runs]
            if "failed" in states:
                raise ServerError(f"a run of {DAG_ID} failed; its logs: {airflow.home / 'logs'}")
            line = (
                f"{len(runs)} run{'s' if len(runs) != 1 else ''} ({states.count('success')} finished) · "
                f"collected {report.collected_rows(self.spool):,} · stored {stored:,} · "
                f"rejected {rejected:,} of {sent:,}"
            )
            if line != last:
                self.say(line)
                last, changed = line, time.monotonic()
            # The last run has to send its rejects and its report as well before the books are closed.
            if stored + rejected >= sent and states and set(states) == {"success"}:
                return
            if not broker.running:
                raise ServerError(f"{broker.name} has ended in the middle of it; its log: {broker.log_file}")
            if time.monotonic() - changed > STALL_SECONDS:
                raise ServerError(f"no progress for {STALL_SECONDS:.0f} s; see {airflow.log_file}")
            time.sleep(POLL_SECONDS)

    def _account(self, airflow: Standalone, connection: Connection, sent: int) -> bool:
        self.say("Counting what came out, from the table and the queues themselves")
        dead = list(self._drain(connection, DEAD_LETTERS))
        reports = list(self._drain(connection, REPORTS))
        left = sum(1 for _ in self._drain(connection, FLIGHTS))
        step = time.monotonic()
        counted = report.read_table(self.table)
        self.timed("Spark table read back", step)
        print()
        print(report.delays(counted))
        print()
        if dead:
            print(report.dead_letter(dead[0], DEAD_LETTERS))
            print()
        if reports:
            print(f"The last of {len(reports)} reports on {REPORTS}: {reports[-1].body}")
            print()
        for what, seconds in self.timings:
            print(f"  {seconds:6.1f} s  {what}")
        found = Counter([*counted.numbers, *(json.loads(str(message.body))["number"] for message in dead)])
        balanced = left == 0 and found == Counter(range(sent))
        verdict = "every flight is there, none twice" if balanced else "THE BOOKS DO NOT BALANCE"
        print(
            f"\nsent {sent:,} = stored {counted.rows:,} + dead-lettered {len(dead):,}; "
            f"left on the queue {left:,}: {verdict}"
        )
        print(f"Spark table: {self.table}   spool: {self.spool}   Airflow logs: {airflow.home / 'logs'}")
        if os.environ.get("KEEP"):
            print(
                f"Open {airflow.url}/dags/{DAG_ID} in a browser (no login). Ctrl-C stops everything.",
                flush=True,
            )
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
        else:
            print(f"KEEP=1 make demo leaves Airflow running, to look at {DAG_ID} in the browser.")
        return balanced

    def _drain(self, connection: Connection, destination: Destination) -> Iterator[JmsMessage]:
        shared = JmsConnection(connection, on_close=lambda: None)
        with shared.session(acknowledge_mode=AcknowledgeMode.DUPS_OK, prefetch=100) as session:
            while (message := session.receive(destination, timeout=2)) is not None:
                yield message


def main() -> int:
    """Run the demo and return the exit code: 0 if every message is accounted for."""
    wanted = os.environ.get("N", str(DEFAULT_COUNT))
    if wanted != "all" and not (wanted.isdigit() and int(wanted) > 0):
        print(f"N={wanted}: expected a number of flights, or N=all", file=sys.stderr)
        return 2
    # A closed terminal or a `kill` must not leave Airflow behind.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _interrupt)
    try:
        return 0 if Demo(None if wanted == "all" else int(wanted), run_folder() / "demo").run() else 1
    except (ServerError, ConfigurationError, JmsError) as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("The demo was interrupted; all it started has been stopped.", file=sys.stderr)
        return 130


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
