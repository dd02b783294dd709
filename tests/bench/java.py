"""The same work done by ActiveMQ's own Java client: `JavaClient.java`, run from its source."""

from __future__ import annotations

import functools
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.bench.stomp import BODY, PUBLISH_TRANSACTION, TRANSACTION, Rate
from tests.servers.activemq import ActiveMQClassic
from tests.servers.java import find_java
from tests.servers.ports import HOST

SOURCE = Path(__file__).with_name("JavaClient.java")
_SECONDS = 300


def measure(broker: ActiveMQClassic, messages: int) -> Iterator[Rate]:
    """Yield the rates, or nothing after saying why where this Java has no compiler."""
    java = find_java()
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True)
    if "jdk.compiler" not in modules.stdout:
        print(f"  Java client left out: {java} has no compiler (Debian: openjdk-17-jdk-headless)")
        return
    run = functools.partial(_run, java, broker)
    queue = f"bench.java.{uuid.uuid4().hex[:8]}"
    for what, mode, transaction in (
        (f"publish, transactions of {PUBLISH_TRANSACTION}", "publish", PUBLISH_TRANSACTION),
        ("receive, individual acknowledgements", "individual", 1),
    ):
        yield Rate(
            what=what, who="Java client", per_second=_run(java, broker, queue, mode, messages, transaction)
        )
    run(queue, "publish", messages, PUBLISH_TRANSACTION)
    rate = run(queue, "transacted", messages, TRANSACTION)
    yield Rate(what=f"receive, transactions of {TRANSACTION}", who="Java client", per_second=rate)


def _run(  # noqa: PLR0917 - all of them go to the program, in this order
    java: Path, broker: ActiveMQClassic, queue: str, mode: str, messages: int, transaction: int
) -> float:
    finished = subprocess.run(
        [
            java,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            "-cp",
            ":".join(map(str, broker.jars())),
            SOURCE,
            f"tcp://{HOST}:{broker.ports['openwire']}",
            broker.username,
            broker.password,
            queue,
            mode,
            str(messages),
            str(transaction),
            str(len(BODY)),
        ],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if finished.returncode:
        raise RuntimeError(f"the Java client failed: {finished.stderr.strip().splitlines()[-1:]}")
    return float(finished.stdout.strip().splitlines()[-1])
