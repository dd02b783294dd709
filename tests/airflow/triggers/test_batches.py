"""Events of many messages, and events that refer to a message in the spool."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    Destination,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    SpoolError,
    connect,
    message_from_event,
    messages_from_event,
)
from tests.airflow.conftest import Publish
from tests.airflow.test_triggerer import airflow_connection
from tests.airflow.triggers.test_activation import Watcher, send, triggerer
from tests.airflow.triggers.waiting import run, until
from tests.internals.spool import FOLDER, seal_message
from tests.internals.triggers import references
from tests.servers.broker import Broker as RealBroker

LONG = 60


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW__JMSJCA__SPOOL_PATH", str(tmp_path / "spool"))
    return tmp_path / "spool"


def batches(watcher: Watcher) -> list[list[Any]]:
    return [[message.body for message in messages_from_event(each.payload)] for each in watcher.events]


def test_a_batch_ends_when_it_is_full(server: MemoryBroker, publish: Publish) -> None:
    """J187: one event for many messages, in their order; the rest waits for its time."""

    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(batch_size=3, batch_timeout=0.6)
            begin = time.monotonic()
            publish(*"abcdefg")
            await until(lambda: batches(watcher) == [["a", "b", "c"], ["d", "e", "f"], ["g"]])
            assert time.monotonic() - begin > 0.5
            payload = watcher.events[0].payload
            assert (payload["event"], payload["jms_conn_id"]) == ("batch", "jms_test")
            assert [each["destination"] for each in payload["messages"]] == ["queue://orders"] * 3
            await until(lambda: server.depth("orders") == 0)

    run(work())


def test_without_a_timeout_a_batch_ends_when_nothing_comes(server: MemoryBroker, publish: Publish) -> None:
    """J188: `batch_idle_timeout`; with a `batch_timeout` alone it isn't heard."""

    async def work() -> None:
        async with triggerer() as running:
            hasty = running.watch(batch_size=10)
            patient = running.watch(destination="others", batch_size=10, batch_timeout=LONG)
            publish("a", "b")
            publish("a", to="others")
            await until(lambda: batches(hasty) == [["a", "b"]])
            await asyncio.sleep(0.3)
            assert batches(patient) == []
            await until(lambda: server.depth("orders") == 0)

    run(work())


def test_all_of_a_batch_is_acknowledged_or_none(server: MemoryBroker, publish: Publish) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(batch_size=3)
            watcher.stores = False
            publish("a", "b", "c")
            await until(lambda: batches(watcher) == [["a", "b", "c"]])
            await asyncio.sleep(0.2)
            assert server.depth("orders") == 3
            watcher.store()
            await until(lambda: server.depth("orders") == 0)
        async with triggerer(ack_timeout=0.3) as running:
            forgetful = running.watch(batch_size=2, redelivery_handling="1:10")
            forgetful.stores = False
            # The other one keeps the stream alive when Airflow has given the first one up.
            other = running.watch(batch_size=2, redelivery_handling="1:10")
            publish("d", "e")
            await until(lambda: len(other.events) == 2)
            assert batches(other) == [["d", "e"]] * 2
            ids = [
                [each["message"]["message_id"] for each in event.payload["messages"]]
                for event in other.events
            ]
            assert ids[0] == ids[1]
            await until(lambda: server.depth("orders") == 0)

    run(work())


def test_more_batches_are_under_way_than_one(publish: Publish) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(batch_size=200)
            watcher.stores = False
            publish(*map(str, range(500)))
            await until(lambda: len(watcher.events) == 2)
            await asyncio.sleep(0.3)
            assert [len(each) for each in batches(watcher)] == [200, 200]
            watcher.stores = True
            watcher.store()
            await until(lambda: [*itertools.chain(*batches(watcher))] == [*map(str, range(500))])

    run(work())


def test_a_batch_ends_when_it_is_heavy(publish: Publish) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(batch_size=100, batch_timeout=LONG)
            publish(*("x" * 250_000 for _ in range(9)))
            await until(lambda: [len(each) for each in batches(watcher)] == [4, 4])

    run(work())


def test_a_batch_ends_when_what_it_refers_to_is_heavy(publish: Publish) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(batch_size=100, batch_timeout=LONG, payload="reference")
            publish(*(str(number) * 1024 * 1024 for number in range(9)))
            await until(lambda: len(watcher.events) == 1)
            assert [each[0] for each in batches(watcher)[0]] == [*"0123"]

    run(work())


def test_of_a_batch_a_message_too_large_is_refused_alone(server: MemoryBroker, publish: Publish) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(batch_size=3, max_body_bytes=100, dead_letter_destination="dead")
            publish("a")
            send(server, "large", note="x" * 200)
            publish("c")
            await until(lambda: batches(watcher) == [["a", "c"]])
            await until(lambda: (server.depth("orders"), server.depth("dead")) == (0, 1))

    run(work())


def test_a_lost_connection_repeats_no_batch(server: MemoryBroker, publish: Publish) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(batch_size=2, batch_timeout=LONG)
            publish("a", "b", "c")
            await until(lambda: batches(watcher) == [["a", "b"]])
            await until(lambda: server.depth("orders") == 1)
            server.restart()
            await until(lambda: server.connections == 1)
            publish("d")
            await until(lambda: batches(watcher) == [["a", "b"], ["c", "d"]])
            await until(lambda: server.depth("orders") == 0)

    run(work())


@pytest.mark.parametrize("arguments", [{"max_body_bytes": 100}, {"payload": "reference"}, {"batch_size": 1}])
def test_a_large_body_goes_by_reference(
    server: MemoryBroker, publish: Publish, spool: Path, arguments: dict[str, Any]
) -> None:
    size = 300_000 if "batch_size" in arguments else 200

    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(**arguments)
            publish("x" * size)
            await until(lambda: len(watcher.events) == 1)
            payload = json.loads(json.dumps(watcher.events[0].payload))
            assert "x" * 10 not in json.dumps(payload)
            assert payload["headers"]["message_id"] is not None
            message = message_from_event(payload)
            assert (message.body, message.message_id) == ("x" * size, payload["headers"]["message_id"])
            await until(lambda: server.depth("orders") == 0)
            (path,) = (spool / FOLDER).rglob("*.json")
            path.write_text("{}")
            with pytest.raises(SpoolError, match="expected sha256"):
                message_from_event(payload)

    run(work())


DAY = 86_400


def aged(spool: Path, days: float) -> Path:
    """Put a message into the spool that an event of so many days ago refers to."""
    reference = seal_message(spool, JmsMessage.text(f"{days} days ago"))
    (path,) = (spool / FOLDER).rglob(f"{reference['sha256']}.json")
    os.utime(path, (time.time() - days * DAY,) * 2)
    return path


def test_what_events_refer_to_is_deleted_after_its_retention(
    publish: Publish, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__REFERENCE_RETENTION_DAYS", "2.5")
    monkeypatch.setattr(references, "_swept", {})
    old, young = aged(spool, 2.6), aged(spool, 2.4)

    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(payload="reference")
            publish("a")
            await until(lambda: not old.exists())
            await until(lambda: batches(watcher) == [["a"]])

    run(work())
    assert young.exists()


@pytest.mark.parametrize("days", ["never", "0", "-1", "nan", "inf", "1e999"])
def test_a_retention_that_is_none_deletes_nothing_and_stops_nobody(
    publish: Publish,
    spool: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    days: str,
) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__REFERENCE_RETENTION_DAYS", days)
    monkeypatch.setattr(references, "_swept", {})
    old = aged(spool, 1_000)

    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(payload="reference")
            publish("a")
            await until(lambda: batches(watcher) == [["a"]])
            await until(lambda: f"reference_retention_days is {days!r}" in caplog.text)

    run(work())
    assert old.exists()


def test_in_a_batch_only_large_ones_go_by_reference(publish: Publish, spool: Path) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(batch_size=3, max_body_bytes=100)
            publish("a", "x" * 200, "c")
            await until(lambda: batches(watcher) == [["a", "x" * 200, "c"]])
            assert len([*(spool / FOLDER).rglob("*.json")]) == 1

    run(work())


def test_while_the_spool_can_not_be_written_the_message_waits(
    server: MemoryBroker,
    publish: Publish,
    spool: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full disk is no fault of the message: its first failure would make it a dead letter."""
    spool.write_text("no folder")
    seal, tried = references.seal, []

    async def noted(message: JmsMessage) -> dict[str, Any]:
        tried.append(message.body)
        return await seal(message)

    async def work() -> None:
        monkeypatch.setattr(references, "seal", noted)
        async with triggerer() as running:
            handling = "1:move(queue:$.dead)"
            watcher = running.watch(payload="reference", redelivery_handling=handling, batch_size=2)
            publish("a")
            await until(lambda: "No events for" in caplog.text)
            await until(lambda: len(tried) >= 2)
            assert watcher.events == []
            assert server.depth("orders") == 1
            os.unlink(spool)  # noqa: PTH108 - not a coroutine of pathlib
            await until(lambda: batches(watcher) == [["a"]])
            await until(lambda: server.depth("orders") == 0)
            await until(lambda: "works again" in caplog.text)

    run(work())
    assert server.depth("orders.dead") == 0
    assert caplog.text.count("No events for") == 1
    assert "can't be written: Not a directory" in caplog.text or "is no folder" in caplog.text


def test_one_who_is_cancelled_while_sealing_loses_nothing(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow takes a trigger that is cancelled for one that is done with its message: its DAG was paused."""
    seal = references.seal
    sealing = asyncio.Event()

    async def slow(message: JmsMessage) -> dict[str, Any]:
        reference = await seal(message)
        sealing.set()
        await asyncio.sleep(LONG)
        return reference

    async def work() -> None:
        monkeypatch.setattr(references, "seal", slow)
        async with triggerer() as running:
            first = running.watch(payload="reference")
            publish("a")
            await asyncio.wait_for(sealing.wait(), 10)
            await first.cancel()
            monkeypatch.setattr(references, "seal", seal)
            second = running.watch(payload="reference")
            await until(lambda: batches(second) == [["a"]])
            await until(lambda: server.depth("orders") == 0)

    run(work())


PROGRAM = """
import asyncio, json, os, sys
from airflow_provider_jmsjca import JmsActivationTrigger
from tests.internals.triggers import references
from tests.airflow.triggers.test_activation import Watcher, triggerer
from tests.airflow.triggers.waiting import until

arguments, stored, kill_after = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
seal, sealed = references.seal, 0

async def killed(message):
    global sealed
    reference = await seal(message)
    sealed += 1
    if sealed == kill_after:
        os.kill(os.getpid(), 9)
    return reference

references.seal = killed

class Storing(Watcher):
    def store(self):
        with open(stored, "a") as file:
            for event in self.events[getattr(self, "kept", 0):]:
                file.write(json.dumps(event.payload) + "\\n")
            self.kept = len(self.events)
            file.flush()
            os.fsync(file.fileno())
        super().store()

async def work():
    async with triggerer() as running:
        trigger = JmsActivationTrigger(**arguments)
        running.watchers.append(Storing(running.manager, trigger, 1))
        await asyncio.sleep(3600)

asyncio.run(work())
"""


def test_killed_between_seal_and_event_nothing_is_lost(
    activemq: RealBroker, tmp_path: Path, spool: Path
) -> None:
    """Repeated events carry the same ids, and refer to the same files."""
    queue = Destination.queue(f"sealed.{uuid.uuid4().hex}")
    connection = connect(activemq.settings())
    bodies = [f"{number} {'x' * 1000}" for number in range(60)]
    connection.send(Outgoing(destination=queue, message=JmsMessage.text(body)) for body in bodies)
    stored = tmp_path / "stored"
    stored.touch()
    arguments = {
        "jms_conn_id": "jms_test", "destination": str(queue), "payload": "reference", "batch_size": 4,
        "prefetch": 12,
    }  # fmt: skip
    environment = os.environ | {"AIRFLOW_CONN_JMS_TEST": json.dumps(airflow_connection(activemq))}

    def command(kill_after: int) -> list[str]:
        return [sys.executable, "-c", PROGRAM, json.dumps(arguments), str(stored), str(kill_after)]

    done = subprocess.run(command(19), env=environment, check=False, timeout=180)
    assert done.returncode == -9
    last = subprocess.Popen(command(-1), env=environment)
    try:
        deadline = time.monotonic() + 180
        while any(True for _ in connection.browse(queue)):
            assert time.monotonic() < deadline, "the queue is not empty"
            assert last.poll() is None
            time.sleep(0.2)
    finally:
        last.kill()
        last.wait()
        connection.close()
    entries = [each for line in stored.read_text().splitlines() for each in json.loads(line)["messages"]]
    messages = [message_from_event(each) for each in entries]
    assert {message.body for message in messages} == set(bodies)
    assert len({message.message_id for message in messages}) == len(bodies)
    repeated = len(messages) - len(bodies)
    assert repeated <= 12
    assert len([*(spool / FOLDER).rglob("*.json")]) >= len(bodies)
