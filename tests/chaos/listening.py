"""A process that listens until its queue is empty, or until SIGTERM; the test kills it, or its broker.

Even numbers are sent on and odd ones become dead letters; plain handlers write each number into a file.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_provider_jmsjca import (
    ActivationSpec,
    ConnectionSettings,
    JmsMessage,
    PoisonMessageError,
    connect,
)
from tests.chaos.listener_processes import Work
from tests.internals.core import Backoff
from tests.internals.engine import Listener, listener_settings, one_connection

_SPECS: dict[Work, dict[str, Any]] = {
    Work.FORWARD: {},
    # The odd ones have the others rolled back, again and again: those don't become dead letters for that.
    Work.BATCHES: {
        "batch_size": 10,
        "endpoint_pool_max_size": 2,
        "redelivery_handling": "1000:move(queue:$.dead)",
    },
    Work.HELD: {"hold_until_ack": True},
    Work.DELAYED: {"redelivery_handling": "1:5; 2:20; 3:move(queue:$.dead)"},
    Work.PLAIN: {},
    Work.CONFIRMED: {"confirm_acknowledgements": True},
}


class Told:
    """Whether to stop: set by a signal, where nothing that locks may be used."""

    def __init__(self) -> None:
        self._told = False

    def is_set(self) -> bool:
        return self._told

    def tell(self, *_: object) -> None:
        self._told = True


def main() -> None:
    told = Told()
    signal.signal(signal.SIGTERM, told.tell)
    logging.basicConfig(level=logging.WARNING)
    asked = json.loads(sys.stdin.readline())
    settings = ConnectionSettings(
        scheme="stomp",
        hosts=((asked["host"], asked["port"]),),
        username=asked["username"],
        password=asked["password"],
        connect_timeout=timedelta(seconds=2),
        heart_beat=timedelta(seconds=1),
    )
    source, work = asked["queue"], Work(asked["work"])
    spec: dict[str, Any] = {
        "destination": f"queue://{source}",
        "concurrency_mode": asked["mode"],
        "endpoint_pool_max_size": 3,
        "prefetch": asked["prefetch"],
        "redelivery_handling": "20:move(queue:$.dead)",
        "dead_letter_destination": f"queue://{source}.dead",
    }
    listener = listener_settings(ActivationSpec(**(spec | _SPECS[work])))
    outage = replace(listener.delivery.outage, backoff=Backoff(steps=(timedelta(seconds=0.2),)))
    listener = replace(listener, delivery=replace(listener.delivery, outage=outage))

    done = os.open(asked["done"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    held: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def handle(delivery: Any) -> None:
        if delivery.end_of_batch:
            return
        sys.stdout.write(".")
        sys.stdout.flush()
        if work.is_plain:
            time.sleep(0.002)  # so that a kill finds it in here
            os.write(done, f"{delivery.body}\n".encode())
            return
        if int(delivery.body) % 2:
            raise ValueError("odd") if work is Work.DELAYED else PoisonMessageError("odd")
        identifier = delivery.message_id if asked["deduplicates"] and work is Work.BATCHES else None
        delivery.send(f"queue://{source}.out", JmsMessage.text(delivery.body), deduplication_id=identifier)
        if work is Work.HELD:
            held.put(delivery)

    def acknowledge() -> None:
        while True:
            held.get().acknowledge()

    threading.Thread(target=acknowledge, daemon=True).start()
    counts = Listener(one_connection(listener, functools.partial(connect, settings)), handle).run(
        idle_for=timedelta(seconds=asked["idle_for"]), stop=told
    )
    sys.stdout.write(json.dumps(counts.as_dict()) + "\n")


if __name__ == "__main__":
    main()
