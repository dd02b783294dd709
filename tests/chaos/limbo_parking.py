"""A listener that sends later, and may die between parking and acknowledging.

Run by `python -m tests.chaos.limbo_parking`.
Reads a JSON object from stdin: `store` (URL), `host`, `port`, `username`, `password`, `queue`, `dies`.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta

from airflow_provider_jmsjca import (
    ActivationSpec,
    ConnectionSettings,
    Delivery,
    JmsMessage,
    connect,
    open_store,
)
from tests.internals.engine import (
    DelayedMessages,
    Listener,
    ListenerContext,
    listener_settings,
    one_connection,
)
from tests.internals.store import LimboEntry

if __name__ == "__main__":
    given = json.load(sys.stdin)
    queue = given["queue"]
    settings = ConnectionSettings(
        scheme="stomp",
        hosts=((given["host"], given["port"]),),
        username=given["username"],
        password=given["password"],
    )
    store = open_store(given["store"])
    put = DelayedMessages.put

    def put_and_die(shelf: DelayedMessages, entries: Sequence[LimboEntry]) -> list[int]:
        put(shelf, entries)
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    def send_later(delivery: Delivery) -> None:
        for number in range(2):
            delivery.send(f"queue://{queue}.later", JmsMessage.text(f"{delivery.body} {number}"), delay=0.1)

    if given["dies"]:
        DelayedMessages.put = put_and_die  # type: ignore[method-assign]
    spec = ActivationSpec(destination=f"queue://{queue}", use_store=True)
    listener = Listener(
        one_connection(
            listener_settings(spec, ListenerContext(store=store, jms_conn_id="broker")),
            functools.partial(connect, settings),
        ),
        send_later,
    )
    listener.run(max_messages=1, run_for=timedelta(seconds=60))
    store.close()
