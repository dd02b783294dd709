"""A process that listens with a store, until nothing comes or until it dies of a message.

It reads what to do as JSON from its standard input, writes each body that its handler got to a file, and ends
without a word, as a process does that is killed, when it gets the poison.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from datetime import timedelta
from pathlib import Path

from sqlalchemy import create_engine, event, text

from airflow_provider_jmsjca import ActivationSpec, ConnectionSettings, Delivery, connect, open_store
from tests.internals.engine import Listener, ListenerContext, listener_settings, one_connection

EXIT_OF_POISON = 9

EFFECTS = "CREATE TABLE effect (message_id VARCHAR(250) PRIMARY KEY, body TEXT NOT NULL)"
_EFFECT = text("INSERT INTO effect VALUES (:message_id, :body) ON CONFLICT DO NOTHING")


class Effects:
    """What a handler writes into the store's database, once for each message; see docs/how-to/store.md."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url)
        if self._engine.dialect.name == "sqlite":
            event.listen(self._engine, "connect", lambda raw, _: raw.execute("PRAGMA busy_timeout=30000"))

    def write(self, delivery: Delivery) -> None:
        """Write it, unless it is there."""
        with self._engine.begin() as connection:
            connection.execute(_EFFECT, {"message_id": delivery.message_id, "body": delivery.body})


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    logging.basicConfig(level=logging.WARNING)
    settings = ConnectionSettings(
        scheme="stomp",
        hosts=((asked["host"], asked["port"]),),
        username=asked["username"],
        password=asked["password"],
    )
    done = os.open(Path(asked["done"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    effects = Effects(asked["store"]) if asked.get("effects") else None

    def handle(delivery: Delivery) -> None:
        if effects is not None:
            os.write(done, f"{delivery.body} {delivery.redelivery_count}\n".encode())
            effects.write(delivery)
            os.write(done, f"{delivery.body} end\n".encode())
            sys.stdout.write(".")
            sys.stdout.flush()
            return
        os.write(done, f"{delivery.body}\n".encode())
        sys.stdout.write(".")
        sys.stdout.flush()
        if delivery.body == asked["poison"]:
            os._exit(EXIT_OF_POISON)
        if asked.get("fails"):
            raise ValueError("no stock")

    store = open_store(asked["store"])
    spec = ActivationSpec(destination=f"queue://{asked['queue']}", use_store=True, **asked["spec"])
    made = listener_settings(spec, ListenerContext(store=store, jms_conn_id="broker"))
    Listener(one_connection(made, functools.partial(connect, settings)), handle).run(
        idle_for=timedelta(seconds=asked["idle_for"])
    )
    store.close()


if __name__ == "__main__":
    main()
