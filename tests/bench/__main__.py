"""Throughput and core costs, measured beside rivals in one run: `make bench`.

    python -m tests.bench [--messages 20000] [--rounds 3] [--broker activemq] [--broker rabbitmq]

Prints every figure of every round, then medians and ratios; a round before the first warms up the broker.
The ratios are what counts: absolute figures depend on the machine.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.connector import open_connection
from airflow_provider_jmsjca.transports import connect
from tests.bench import batch, core, java, stomp
from tests.bench.stomp import BODY, Rate
from tests.servers.activemq import ActiveMQClassic
from tests.servers.broker import Broker
from tests.servers.catalogue import BROKERS, make_broker
from tests.servers.errors import ServerError, ServerUnavailableError
from tests.servers.folders import run_folder

RIVALS = ("stomp.py", "Java client")
SEALED = "receive into sealed segments"


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--broker", action="append", choices=list(BROKERS), dest="brokers")
    asked = parser.parse_args()
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors")
    print(f"{asked.messages:,} persistent messages of {len(BODY)} bytes, {asked.rounds} rounds\n")
    for line in core.report():
        print(line)
    try:
        for name in asked.brokers or ["activemq", "rabbitmq"]:
            _bench(make_broker(name, run_folder() / "bench" / name), asked.messages, asked.rounds)
    except ServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _bench(broker: Broker, messages: int, rounds: int) -> None:
    try:
        broker.fetch()
    except ServerUnavailableError as error:
        print(f"\n{broker.name}: left out: {error}")
        return
    broker.start()
    try:
        print(f"\n{broker.name}")
        rates: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for number in range(rounds + 1):
            for rate in _round(broker, messages):
                # The first round warms up the broker's virtual machine for everybody: it doesn't count.
                if number:
                    rates[rate.what, rate.who].append(rate.per_second)
                print(
                    f"  round {number or '-'}  {rate.per_second:>9,.0f}/s  {rate.who:<12}  {rate.what}",
                    flush=True,
                )
    finally:
        broker.stop()
    _summary({key: statistics.median(values) for key, values in rates.items()})


def _round(broker: Broker, messages: int) -> Iterator[Rate]:
    settings = broker.settings()
    yield from stomp.measure(settings, messages)
    if isinstance(broker, ActiveMQClassic):
        yield from java.measure(broker, messages)
    queue = Destination.queue(f"bench.sealed.{os.urandom(4).hex()}")
    connection = connect(settings)
    try:
        batch.publish(connection, queue, messages, len(BODY))
    finally:
        connection.close()
    with tempfile.TemporaryDirectory(dir=run_folder()) as spool:
        found = batch.measure(functools.partial(open_connection, settings), queue, messages, Path(spool))
    yield Rate(what=SEALED, who="ours", per_second=found.per_second)


def _summary(medians: dict[tuple[str, str], float]) -> None:
    print("  medians")
    for what in dict.fromkeys(key[0] for key in medians):
        ours = medians[what, "ours"]
        # Sealing has no rival that seals: the plain loop, which keeps nothing, is the yardstick.
        beside = "receive, individual acknowledgements" if what == SEALED else what
        ratios = [
            f"{ours / medians[beside, rival]:.2f} x {rival}" for rival in RIVALS if (beside, rival) in medians
        ]
        print(f"    {ours:>9,.0f}/s  {what}: {', '.join(ratios)}")


if __name__ == "__main__":
    sys.exit(main())
