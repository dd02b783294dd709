"""J204, J211: the node that moves a topic's messages is killed amid it, or its broker is: another goes on.

Nothing is lost. ActiveMQ moves a batch whole or not at all, Artemis drops the repetition by its id; RabbitMQ
repeats at most the batch that was under way, and when it is killed itself whatever it had not written of its
acknowledgements. `JMSJCA_CHAOS=full` makes 40 rounds for each broker, otherwise 2.
"""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_jmsjca import ActivationSpec, Destination, JmsMessage, Outgoing, Subscription, connect
from tests.internals.engine import Listener, listener_settings, one_connection
from tests.internals.transports import Received
from tests.servers.broker import Broker

ROOT = Path(__file__).parents[2]
ROUNDS = 40 if os.environ.get("JMSJCA_CHAOS") == "full" else 2
MESSAGES = 300
BATCH = 10
# Artemis may block for 10 s after a client was killed.
PATIENCE = 60.0


class Node:
    """A process of `tests.chaos.balancing`."""

    def __init__(self, broker: Broker, topic: str) -> None:
        host, port = broker.address()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.balancing"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._process.stdin is not None
        # The password travels where no list of processes shows it.
        asked = {"host": host, "port": port, "username": broker.username, "password": broker.password}
        self._process.stdin.write(json.dumps(asked | {"topic": topic}) + "\n")
        self._process.stdin.flush()

    def until(self, condition: Callable[[bool, int], bool]) -> None:
        """Wait until the condition holds for what the process says: whether it is active, what it moved."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            active, moved = line.split()
            if condition(active == "1", int(moved)):
                return
        raise AssertionError("the node died by itself")

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._process.stdout as output:
            output.read()
        if not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait(timeout=60)


def subscribe(broker: Broker, topic: str) -> None:
    """Make the durable subscription, so that the topic keeps what is published before a node is there."""
    connection = connect(replace(broker.settings(), client_id=topic))
    nothing: Callable[[Received], None] = lambda _: None  # noqa: E731 - a callback that needs its type
    connection.consume(
        Subscription(destination=Destination.topic(topic), durable_name="s", prefetch=1), nothing
    ).close()
    connection.close()


def moved_at_least(number: int, _active: bool, moved: int) -> bool:
    return moved >= number


def drained(broker: Broker, queue: str, found: Counter[int]) -> None:
    def note(delivery: object) -> None:
        found[int(delivery.body)] += 1  # type: ignore[attr-defined]  # a Delivery

    settings = listener_settings(ActivationSpec(destination=f"queue://{queue}"))
    Listener(one_connection(settings, functools.partial(connect, broker.settings())), note).run(
        idle_for=timedelta(seconds=1)
    )


@pytest.mark.timeout(3600)
def test_another_node_goes_on_where_one_was_killed(any_private_broker: Broker, queue_name: str) -> None:
    broker = any_private_broker
    chance = random.Random(20261121)  # noqa: S311 - where to kill
    doubled = longest = 0.0
    topics = [f"{queue_name}.{turn}" for turn in range(ROUNDS)]
    for topic in topics:
        subscribe(broker, topic)
    broker.put_on_disk(*(f"{topic}.out" for topic in topics))
    for turn, topic in enumerate(topics):
        active = Node(broker, topic)
        active.until(lambda up, _: up)
        standby = Node(broker, topic)
        connection = connect(broker.settings())
        product = connection.broker.product
        connection.send(
            Outgoing(destination=Destination.topic(topic), message=JmsMessage.text(str(number)))
            for number in range(MESSAGES)
        )
        connection.close()
        active.until(functools.partial(moved_at_least, chance.randrange(MESSAGES // 3)))
        time.sleep(chance.random() * 0.02)
        killed_broker = turn % 2 == 1
        if killed_broker:
            broker.kill()
            broker.start()
        else:
            active.kill()
        began = time.monotonic()

        found: Counter[int] = Counter()
        while len(found) < MESSAGES and time.monotonic() - began < PATIENCE:
            drained(broker, f"{topic}.out", found)
        longest = max(longest, time.monotonic() - began)
        if killed_broker:
            active.stop()
        standby.stop()
        drained(broker, f"{topic}.out", found)
        assert set(found) == set(range(MESSAGES)), f"lost in round {turn}"
        twice = found.total() - MESSAGES
        doubled += twice
        if product == "rabbitmq" and killed_broker:
            continue  # it forgets acknowledgements it confirmed, and gives those messages to the other node
        bound = BATCH if product == "rabbitmq" else 0
        assert twice <= bound, f"round {turn}: {twice} are on the queue twice"
    sys.stdout.write(f"{product}: {ROUNDS} kills, {doubled:.0f} doubled, all there after {longest:.1f} s\n")
