"""Activations in a real triggerer: a thousand of them, and events beside those of a trigger without a broker.

The null trigger is Airflow's own floor: its events take the same way, and nobody has to be asked for them.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, Outgoing
from tests.airflow.triggerer import TriggererProcess
from tests.servers.broker import Broker
from tests.servers.folders import run_folder

ACTIVATIONS: Final = 1_000
PER_SECOND: Final = 20
SECONDS: Final = 10
BURST: Final = 300
ROUNDS: Final = 3
_SETTLING_SECONDS: Final = 25
"""What starting leaves to do has ended then."""
# Airflow looks at every shared stream each 30 s.
_IDLE_SECONDS: Final = 30
_STUCK_SECONDS: Final = 180
_KIB: Final = 1024

_MANY = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow_provider_jmsjca.triggers.activation import JmsActivationTrigger
from tests.bench.null_trigger import IdleTrigger

given = {arguments!r}

def trigger(number):
    if given["event"] is None:
        return IdleTrigger(number)
    queue = f"queue://{{given['queues']}}.{{number}}"
    return JmsActivationTrigger(jms_conn_id="jms_test", destination=queue, event=given["event"])

assets = [
    Asset(f"asset-{{number}}", watchers=[AssetWatcher(name="watcher", trigger=trigger(number))])
    for number in range(given["activations"])
]
with DAG("on_arrival", schedule=assets, catchup=False):
    EmptyOperator(task_id="nothing")
"""

_BESIDE = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow_provider_jmsjca.triggers.activation import JmsActivationTrigger
from tests.bench.null_trigger import NullTrigger

given = {arguments!r}
ours = JmsActivationTrigger(jms_conn_id="jms_test", destination=given["queue"])
null = NullTrigger(given["plans"])
assets = [
    Asset(name, watchers=[AssetWatcher(name="watcher", trigger=trigger)])
    for name, trigger in (("ours", ours), ("null", null))
]
with DAG("on_arrival", schedule=assets, catchup=False):
    EmptyOperator(task_id="nothing")
"""


class Home(TriggererProcess):
    """An Airflow home whose triggerer is watched."""

    def __init__(self, broker: Broker, arguments: dict[str, Any], dag_file: str) -> None:
        folder = run_folder() / "bench" / "airflow" / uuid.uuid4().hex
        host, port = broker.address()
        connection = {
            "conn_type": "jms", "host": host, "port": port,
            "login": broker.username, "password": broker.password,
        }  # fmt: skip
        super().__init__(folder, connection, arguments, dag_file)
        self.report_file = folder / "watched.json"
        self.environment |= {
            "JMSJCA_WATCHED": str(self.report_file),
            "AIRFLOW__TRIGGERER__CAPACITY": str(ACTIVATIONS + 10),
            "AIRFLOW__TRIGGERER__DEFAULT_CAPACITY": str(ACTIVATIONS + 10),
        }
        self.command = [sys.executable, "-m", "tests.bench.watched_triggerer"]

    def report(self) -> dict[str, Any]:
        """Return what the watch has written last."""
        try:
            found: dict[str, Any] = json.loads(self.report_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found

    def discard(self) -> None:
        """Delete it."""
        shutil.rmtree(self.home, ignore_errors=True)


def report(broker: Broker) -> bool:
    """Print all figures with their goals; return whether all are met."""
    floor = _floor(broker)
    met = [
        *(_said(goal) for event in ("message", "ready") for goal in _many(broker, event, floor)),
        *(_said(goal) for goal in _beside(broker)),
    ]
    print(f"  {sum(met)} of {len(met)} goals met", flush=True)
    return all(met)


def _said(goal: tuple[str, float, float, str]) -> bool:
    what, reached, most, unit = goal
    met = reached <= most
    print(f"  {'met' if met else 'NOT MET':<12}  {what}: {reached:.2f} {unit}, goal {most:g}", flush=True)
    return met


def _floor(broker: Broker) -> dict[str, float]:
    """Print and return what a thousand triggers cost that do nothing: Airflow's own share."""
    home = Home(broker, {"event": None, "activations": ACTIVATIONS}, _MANY)
    home.environment["JMSJCA_COLLECTS"] = "1"
    home.prepare(None, triggers=ACTIVATIONS)
    home.start()
    try:
        home.until(lambda: home.report().get("triggers") == ACTIVATIONS, _STUCK_SECONDS, "its triggers")
        time.sleep(_SETTLING_SECONDS)
        idle = _idle(psutil.Process(home.report()["pid"]))
        found = home.report()
    finally:
        home.stop()
        home.discard()
    floor = {
        "idle": idle,
        "blocked": found["elapsed"] * 1000,
        "collection": found["own_collection"] * 1000,
        "each": (found["resident"] - found["resident_at_first"]) / ACTIVATIONS / _KIB,
    }
    print(
        f"  {ACTIVATIONS:,} triggers that do nothing: loop blocked for {floor['blocked']:.0f} ms at most, "
        f"{floor['each']:.0f} KiB each; processor while idle {idle:.2f} %; "
        f"one collection of the triggerer's own garbage, before any trigger: "
        f"{floor['collection']:.0f} ms",
        flush=True,
    )
    return floor


def _many(broker: Broker, event: str, floor: dict[str, float]) -> Iterator[tuple[str, float, float, str]]:
    """Yield what a thousand activations cost."""
    name = f"{ACTIVATIONS:,} activations, event={event!r}"
    queues = f"bench.{uuid.uuid4().hex}"
    home = Home(broker, {"queues": queues, "event": event, "activations": ACTIVATIONS}, _MANY)
    home.prepare(None, triggers=ACTIVATIONS)
    began = time.monotonic()
    home.start()
    try:
        home.until(lambda: home.report().get("triggers") == ACTIVATIONS, _STUCK_SECONDS, "its triggers")
        started = time.monotonic() - began
        home.until(lambda: home.report().get("consuming", 0) >= ACTIVATIONS, _STUCK_SECONDS, "all consuming")
        yield f"{name}: all consuming", time.monotonic() - began, 30, f"s (triggers made: {started:.1f} s)"
        time.sleep(_SETTLING_SECONDS)
        runner = psutil.Process(home.report()["pid"])
        idle = _idle(runner)
        found = home.report()
        address = broker.address()[1]
        links = [each for each in runner.net_connections() if each.raddr and each.raddr.port == address]
        each = (found["resident"] - found["resident_at_first"]) / ACTIVATIONS / _KIB
        yield (
            f"{name}: processor while idle",
            idle,
            2,
            f"% (triggers that do nothing, watched likewise: {floor['idle']:.2f} %)",
        )
        own = (
            f"ms (of its own work {found['blocked'] * 1000:.0f} ms, a collection of garbage "
            f"{found['collected'] * 1000:.0f} ms; triggers that do nothing {floor['blocked']:.0f} ms, a "
            f"collection of Airflow's own {floor['collection']:.0f} ms)"
        )
        yield f"{name}: loop blocked at most", found["elapsed"] * 1000, 100, own
        yield f"{name}: connections", len(links), 2, ""
        yield f"{name}: threads", runner.num_threads(), 10, ""
        yield (
            f"{name}: memory of each, Airflow's own included",
            each,
            64,
            f"KiB (triggers that do nothing {floor['each']:.0f} KiB)",
        )
    finally:
        home.stop()
        home.discard()


def _idle(process: psutil.Process) -> float:
    """Return the percentage of one processor that a process takes while nothing happens."""
    began = process.cpu_times()
    time.sleep(_IDLE_SECONDS)
    ended = process.cpu_times()
    return (ended.user + ended.system - began.user - began.system) / _IDLE_SECONDS * 100


def _beside(broker: Broker) -> Iterator[tuple[str, float, float, str]]:
    """Yield how our events do beside those of the null trigger, in one triggerer, in turns."""
    queue = Destination.queue(f"bench.{uuid.uuid4().hex}")
    plans = run_folder() / "bench" / "airflow" / f"plans-{uuid.uuid4().hex}"
    plans.mkdir(parents=True)
    home = Home(broker, {"queue": str(queue), "plans": str(plans)}, _BESIDE)
    home.prepare(None, triggers=2)
    home.start()
    connection = connect(broker.settings())
    steady: list[float] = []
    bursts: list[float] = []
    try:
        home.until(lambda: home.report().get("consuming") == 1, _STUCK_SECONDS, "the triggers")
        for number in range(ROUNDS + 1):
            ours, null = _Ours(home, connection, queue), _Null(home, plans)
            # Who comes first takes turns: what is stored already makes storing dearer.
            order: list[_Ours | _Null] = [ours, null] if number % 2 else [null, ours]
            latencies = {
                who.name: statistics.median(who.events(PER_SECOND * SECONDS, PER_SECOND)) for who in order
            }
            lasted = {who.name: max(who.events(BURST, None)) for who in order}
            print(
                f"  {number or 'warm-up':>7}  p50 at {PER_SECOND}/s: ours {latencies['ours'] * 1000:.0f} ms, "
                f"null {latencies['null'] * 1000:.0f} ms; {BURST} at once: ours {lasted['ours']:.2f} s, "
                f"null {lasted['null']:.2f} s",
                flush=True,
            )
            if number:
                steady.append(latencies["ours"] / latencies["null"])
                bursts.append(lasted["ours"] / lasted["null"])
        yield (
            f"message to stored event, p50 at {PER_SECOND}/s",
            statistics.median(steady),
            1.1,
            "x null trigger",
        )
        yield f"message to stored event, {BURST} at once", statistics.median(bursts), 1.2, "x null trigger"
    finally:
        home.stop()
        connection.close()
        home.discard()
        shutil.rmtree(plans, ignore_errors=True)


class _Source:
    """Makes events, and waits until they are stored."""

    name: str

    def __init__(self, home: Home) -> None:
        self._home = home

    def events(self, count: int, per_second: int | None) -> list[float]:
        """Return for each event after how many seconds it was stored; at once where no rate is given."""
        before = len(self._rows())
        run = uuid.uuid4().hex
        self._make(run, count, per_second)
        self._home.until(lambda: len(self._rows()) >= before + count, _STUCK_SECONDS, f"{count} events")
        found = []
        for stamp, extra in self._rows()[before:]:
            sent = json.loads(extra)["payload"]["message"]["body"].split()
            if sent[0] == run:
                stored = datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()
                found.append(stored - float(sent[1]))
        assert len(found) == count
        return found

    def _rows(self) -> list[tuple[Any, ...]]:
        """Return when each event of the trigger was stored, and what it carries."""
        rows = self._home.query(
            "select asset.name, event.timestamp, event.extra from asset_event event "
            "join asset on asset.id = event.asset_id order by event.id"
        )
        return [row[1:] for row in rows if row[0] == self.name]

    def _make(self, run: str, count: int, per_second: int | None) -> None:
        raise NotImplementedError


class _Ours(_Source):
    name = "ours"

    def __init__(self, home: Home, connection: Connection, queue: Destination) -> None:
        super().__init__(home)
        self._connection, self._queue = connection, queue

    def _make(self, run: str, count: int, per_second: int | None) -> None:
        began, sent = time.time(), time.time()
        if per_second is None:
            messages = [JmsMessage.text(f"{run} {sent}") for _ in range(count)]
            self._connection.send(Outgoing(destination=self._queue, message=each) for each in messages)
            return
        for number in range(count):
            time.sleep(max(0.0, began + number / per_second - time.time()))
            message = JmsMessage.text(f"{run} {time.time()}")
            self._connection.send([Outgoing(destination=self._queue, message=message)])


class _Null(_Source):
    name = "null"

    def __init__(self, home: Home, plans: Path) -> None:
        super().__init__(home)
        self._plans = plans

    def _make(self, run: str, count: int, per_second: int | None) -> None:
        plan = {"run": run, "count": count, "every": 0 if per_second is None else 1 / per_second}
        part = self._plans / f"{run}.part"
        part.write_text(json.dumps(plan), encoding="utf-8")
        part.replace(self._plans / f"{run}.json")
