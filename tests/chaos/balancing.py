"""A process that is one node of a distributed durable subscriber, and moves messages to the queue.

Its queue side doesn't run, so that the test finds on the queue all that was moved. It says how it stands
until its input ends; the test kills it.
"""

from __future__ import annotations

import functools
import json
import sys
import threading
from dataclasses import replace
from datetime import timedelta

from airflow_provider_jmsjca import ActivationSpec, ConnectionSettings, connect
from tests.internals.core import ActivationState
from tests.internals.engine import Listener, ListenerContext, ListenerRun, load_balancing, shared_subscription


def mover(node: Listener) -> ListenerRun:
    """Return the run that moves messages from the subscription to the queue."""
    return node.runs[1]


def is_active(node: Listener) -> bool:
    """Return whether the node has the subscription."""
    return mover(node).state is ActivationState.UP


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    settings = ConnectionSettings(
        scheme="stomp",
        hosts=((asked["host"], asked["port"]),),
        username=asked["username"],
        password=asked["password"],
    )
    topic = asked["topic"]
    spec = ActivationSpec(
        name="node",
        destination=f"topic://{topic}",
        subscription_durability="durable",
        subscription_name=f"jmsjca://?distribution=1&subscribername=s&queue={topic}.out",
        polling_interval="200ms",
    )
    balancing = load_balancing(spec, ListenerContext(client_id=topic))
    assert balancing is not None
    node = Listener(
        shared_subscription(
            balancing,
            functools.partial(connect, replace(settings, client_id=topic)),
            functools.partial(connect, settings),
        ),
        lambda _: None,
    )
    mover(node).begin()
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    said = ""
    while not over.wait(0.001):
        now = f"{int(is_active(node))} {mover(node).counts.committed}\n"
        if now != said:
            sys.stdout.write(now)
            sys.stdout.flush()
            said = now
    node.stop(timedelta(seconds=10))


if __name__ == "__main__":
    main()
