"""A writer of twenty messages that dies in the middle of one call of the operating system."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.spool.known_ids import message_key
from airflow_provider_jmsjca.spool.rows import Row
from airflow_provider_jmsjca.spool.spool import SpoolBatch

KILLED = 9
# Its first array makes Arrow import pandas; done here, it is paid once by the server that forks the writers.
pa.array(["x"])


def die_at(name: str, *, before: bool, number: int) -> None:
    """Let the process end at the n-th call of `os.<name>`, before or after it did its work."""
    real = getattr(os, name)
    calls = 0

    def dying(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls == number and before:
            os._exit(KILLED)
        try:
            return real(*arguments, **named)
        finally:
            if calls == number:
                os._exit(KILLED)

    setattr(os, name, dying)


def write(spool: Path, acknowledged: Path) -> None:
    """Write what is missing of the batch; what counts as acknowledged is noted in a file."""
    orders = Destination.queue("orders")
    with SpoolBatch(spool, "b1", source=str(orders), activation="a") as batch:
        for start in () if batch.manifest else (0, 10):
            ids = [f"ID:{number}" for number in range(start, start + 10)]
            fresh = [text for text in ids if not batch.may_contain(message_key(text, str(orders)))]
            if fresh:
                rows = [Row(JmsMessage.text("x", message_id=i, destination=orders), 0) for i in fresh]
                batch.add(rows[:1])
                batch.seal(rows[1:])
                with acknowledged.open("a") as file:
                    file.writelines(f"{text}\n" for text in fresh)
        batch.complete()


def write_and_die(spool: Path, acknowledged: Path, name: str, before: bool, number: int) -> None:
    die_at(name, before=before, number=number)
    write(spool, acknowledged)
