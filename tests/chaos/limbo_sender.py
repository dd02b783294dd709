"""A process that sends what is due in limbo until it is killed: `python -m tests.chaos.limbo_sender`.

Reads a JSON object from stdin: `store` (URL), `lease` (seconds), and of the broker `host`, `port`, `username`
and `password`. With `dies` it kills itself when the broker has confirmed messages, before it notes that.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta

from airflow_provider_jmsjca import ConnectionSettings, JmsConnection, connect, open_store
from tests.internals.engine import LimboSender

if __name__ == "__main__":
    given = json.load(sys.stdin)
    settings = ConnectionSettings(
        scheme="stomp",
        hosts=((given["host"], given["port"]),),
        username=given["username"],
        password=given["password"],
    )
    limbo = open_store(given["store"]).limbo
    if given.get("dies"):
        limbo.sent = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment,return-value]
    sender = LimboSender(
        limbo,
        lambda _: JmsConnection(connect(settings)),
        lease=timedelta(seconds=given["lease"]),
    )
    while True:
        if not sender.send_due().sent:
            time.sleep(0.02)
