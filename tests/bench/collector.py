"""A process that collects one batch, and says how that went; `tests.bench.pipeline` starts several.

It reads what to do as one line of JSON, says `ready`, waits for another line, and says the result as JSON:
when it began and ended, in seconds of the machine's own clock, and how many MiB it took at most.
"""

from __future__ import annotations

import functools
import json
import sys
import threading
import time
from pathlib import Path

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.collecting.batch_spec import BatchSpec
from airflow_provider_jmsjca.engine.collecting.batcher import collect
from airflow_provider_jmsjca.engine.connecting.connector import open_connection
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.spool import SpoolBatch
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Subscription

SEGMENT = 5_000


def seal(settings: ConnectionSettings, queue: str, messages: int, spool: Path, name: str) -> Manifest:
    """Collect that many messages, which must be there, into a new batch.

    Raises:
        AssertionError: The batch hasn't got them all.
    """
    destination = Destination.queue(queue)
    spec = BatchSpec(
        subscription=Subscription(destination=destination),
        max_messages=messages,
        segment_messages=SEGMENT,
    )
    with SpoolBatch(spool, name, source=str(destination), activation=queue) as batch:
        opener = functools.partial(open_connection, settings)
        result = collect(opener, batch, spec, stop=threading.Event())
    assert result.manifest is not None
    manifest = Manifest.read(result.manifest)
    assert manifest.rows == messages
    return manifest


def main() -> None:
    """Do what standard input asks for."""
    asked = json.loads(sys.stdin.readline())
    settings = ConnectionSettings(
        scheme=asked["scheme"],
        hosts=tuple((host, port) for host, port in asked["hosts"]),
        username=asked["username"],
        password=asked["password"],
    )
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    seal(settings, asked["queue"], asked["messages"], Path(asked["spool"]), asked["name"])
    print(json.dumps({"began": began, "ended": time.monotonic(), "mebibytes": _peak()}))


def _peak() -> float:
    # `getrusage` counts what the process had been before it became this program: its parent's memory.
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
