"""The listening process and its broker are killed anywhere: nothing is lost, and what doubles is bounded.

Every message leaves its queue by a unit of work: sent on by the handler, or moved to the dead-letter queue.
What arrives twice there was settled twice. ActiveMQ commits both sides at once, Artemis drops the repetition
by its id; RabbitMQ may repeat what was under way. `JMSJCA_CHAOS=full` makes 40 rounds for each broker,
otherwise 2.
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
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.listener import Activation
from airflow_provider_jmsjca.engine.listener_settings import listener_settings
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.servers.broker import Broker

ROOT = Path(__file__).parents[2]
ROUNDS = 40 if os.environ.get("JMSJCA_CHAOS") == "full" else 2
MESSAGES = 200
PREFETCH = 20
MODES = ("serial", "cc", "sync")


def start(broker: Broker, queue: str, mode: str, idle_for: float) -> subprocess.Popen[str]:
    host, port = broker.address()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.listening"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdin is not None
    # The password travels where no list of processes shows it.
    asked = {
        "host": host, "port": port, "username": broker.username, "password": broker.password,
        "queue": queue, "mode": mode, "prefetch": PREFETCH, "idle_for": idle_for,
    }  # fmt: skip
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.flush()
    return process


def end(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    with process.stdout as output:
        said = output.read()
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=60)
    return said


def numbers(broker: Broker, queue: str) -> Counter[int]:
    found: Counter[int] = Counter()

    def note(delivery: object) -> None:
        found[int(delivery.body)] += 1  # type: ignore[attr-defined]  # a Delivery

    settings = listener_settings(ActivationSpec(destination=f"queue://{queue}"))
    Activation(settings, functools.partial(connect, broker.settings()), note).run(
        idle_for=timedelta(seconds=1)
    )
    return found


@pytest.mark.timeout(1800)
def test_killed_anywhere_nothing_is_lost(any_private_broker: Broker, queue_name: str) -> None:
    broker = any_private_broker
    chance = random.Random(20261121)  # noqa: S311 - where to kill
    kills = doubled = 0
    for turn in range(ROUNDS):
        queue, mode = f"{queue_name}.{turn}", MODES[turn % len(MODES)]
        connection = connect(broker.settings())
        target = Destination.queue(queue)
        connection.send(
            Outgoing(destination=target, message=JmsMessage.text(str(n))) for n in range(MESSAGES)
        )
        product = connection.broker.product
        connection.close()

        process = start(broker, queue, mode, idle_for=3)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, MESSAGES - PREFETCH)):
            process.stdout.read(1)
        time.sleep(chance.random() * 0.003)
        if turn % 2:
            broker.kill()
            broker.start()
            said = end(process)
            assert '"committed"' in said, "it goes on over a new connection, and ends by itself"
        else:
            process.kill()
            end(process)
        kills += 1
        said = end(start(broker, queue, mode, idle_for=2))
        assert '"committed"' in said, "the last process must end by itself"

        out, dead = numbers(broker, f"{queue}.out"), numbers(broker, f"{queue}.dead")
        assert set(out) == set(range(0, MESSAGES, 2)), f"lost in round {turn}, {mode}"
        assert set(dead) == set(range(1, MESSAGES, 2)), f"lost in round {turn}, {mode}"
        assert not numbers(broker, queue), "left behind"
        twice = sum((out + dead).values()) - MESSAGES
        doubled += twice
        assert twice <= (PREFETCH if product == "rabbitmq" else 0), (
            f"round {turn}, {mode}: {twice} settled twice"
        )
    # How many of the kills hit a gap is luck; this says it.
    sys.stdout.write(f"{product}: {kills} kills, {doubled} settled twice\n")
