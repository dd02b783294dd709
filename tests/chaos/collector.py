"""A process that collects batches until its queue is empty; the test kills it."""

from __future__ import annotations

import json
import sys
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path

from airflow_provider_jmsjca import ConnectionSettings, Destination, Subscription
from tests.internals.collecting import BatchSpec, collect
from tests.internals.engine import open_connection
from tests.internals.spool import ObjectPath, SpoolBatch


def main() -> None:
    asked = json.loads(sys.stdin.read())
    settings = ConnectionSettings(
        scheme="stomp",
        hosts=((asked["host"], asked["port"]),),
        username=asked["username"],
        password=asked["password"],
    )
    source = Destination.queue(asked["queue"])
    spec = BatchSpec(
        subscription=Subscription(destination=source),
        max_messages=asked["max_messages"],
        idle_time=timedelta(seconds=asked["idle_seconds"]),
        segment_messages=asked["segment_messages"],
    )
    spool = asked["spool"]
    place = ObjectPath.parse(spool, asked["options"]) if asked["options"] else Path(spool)
    with SpoolBatch(place, asked["batch_id"], source=str(source), activation="chaos") as batch:
        result = collect(partial(open_connection, settings), batch, spec, stop=threading.Event())
    counts = {"rows": result.rows, "duplicates": result.duplicates, "reconnects": result.reconnects}
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main()
