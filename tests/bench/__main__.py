"""Throughput, measured beside rivals in one run, and memory over a million messages.

    python -m tests.bench [--messages 20000] [--rounds 5] [--broker activemq] [--broker rabbitmq]
    python -m tests.bench --airflow [--broker activemq]
    python -m tests.bench --operations [--messages 100000] [--broker activemq]
    python -m tests.bench --spark [--messages 1000000] [--broker activemq]
    python -m tests.bench --soak 1000000 [--broker activemq]
    python -m tests.bench --before CHECKOUT [--messages 10000] [--rounds 20] [--broker activemq]

Prints every figure of every round, then medians, and beside their goals the medians of the rounds' ratios; a
round before the first warms everybody up. The ratios are what counts: absolute figures depend on the machine,
and so does the processor time for each message, but it doesn't depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.bench import before, core, growth, parked, soak, table
from tests.bench.bare import BareSocket
from tests.bench.java import JavaRival
from tests.bench.ours import Ours
from tests.bench.plain import PlainStomp
from tests.bench.rates import (
    BODY,
    COMMITS_SEVERAL,
    INDIVIDUAL,
    INDIVIDUAL_SEVERAL,
    JAVA,
    LISTENER,
    LISTENER_BATCH,
    LISTENER_CC,
    LISTENER_SYNC,
    PUBLISH_BYTES,
    SEALED,
    TRANSACTED,
    Measured,
)
from tests.bench.rival import Rival
from tests.servers.activemq import ActiveMQClassic
from tests.servers.broker import Broker
from tests.servers.catalogue import BROKERS, make_broker
from tests.servers.errors import ServerError, ServerUnavailableError
from tests.servers.folders import run_folder

_LEGS: Final = (
    PUBLISH_BYTES,
    INDIVIDUAL,
    LISTENER,
    INDIVIDUAL_SEVERAL,
    LISTENER_CC,
    LISTENER_SYNC,
    COMMITS_SEVERAL,
    LISTENER_BATCH,
    TRANSACTED,
    SEALED,
)


def parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    made = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--messages", type=int, help="default 20,000; --spark 1,000,000, --before 10,000")
    made.add_argument("--rounds", type=int, help="default 5; with --before 20")
    made.add_argument("--broker", action="append", choices=list(BROKERS), dest="brokers")
    made.add_argument(
        "--soak", type=int, metavar="MESSAGES", help="watch the memory instead; fails if it grows"
    )
    made.add_argument(
        "--airflow", action="store_true", help="a triggerer's events and a thousand activations instead"
    )
    made.add_argument(
        "--spark", action="store_true", help="from a broker into tables, and bodies to columns, instead"
    )
    made.add_argument(
        "--operations", action="store_true", help="list commands and the page, with 100,000 dead letters"
    )
    made.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="this package beside an earlier one, nobody else"
    )
    return made


def main() -> int:
    """Measure, print, and return the exit code."""
    asked = parser().parse_args()
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors")
    if asked.soak:
        return _on_brokers(
            asked.brokers or ["activemq"], lambda broker: soak.report(broker.settings(), asked.soak)
        )
    if asked.airflow:
        from tests.bench import airflow  # noqa: PLC0415 - its import takes seconds

        print("What a triggerer does beside a trigger without a broker, and with a thousand activations")
        return _on_brokers(asked.brokers or ["activemq"], airflow.report)
    if asked.operations:
        from tests.bench import operations  # noqa: PLC0415 - only here Airflow's commands are needed

        with operations.installation():
            return _on_brokers(
                asked.brokers or ["activemq", "artemis", "rabbitmq"],
                lambda broker: operations.report(broker, asked.messages or operations.LETTERS),
            )
    if asked.spark:
        return _spark(asked.brokers or ["activemq"], asked.messages or 1_000_000)
    if asked.before:
        return _on_brokers(
            asked.brokers or ["activemq", "rabbitmq"],
            lambda broker: _before(broker, asked.before, asked.messages or 10_000, asked.rounds or 20),
        )
    messages, rounds = asked.messages or 20_000, asked.rounds or 5
    print(f"{messages:,} persistent messages of {len(BODY)} bytes, {rounds} rounds\n")
    for line in core.report():
        print(line)
    for line in growth.report():
        print(line)
    return _on_brokers(
        asked.brokers or ["activemq", "artemis", "rabbitmq"],
        lambda broker: _bench(broker, messages, rounds),
    )


def _spark(brokers: list[str], messages: int) -> int:
    from tests.bench import mapping, pipeline, spark_tables  # noqa: PLC0415 - only here Spark is needed

    def work(broker: Broker) -> None:
        for line in pipeline.on_broker(broker, messages // 10):
            print(line, flush=True)
        for line in pipeline.in_spark(broker, messages, messages // 10):
            print(line, flush=True)

    for line in itertools.chain(mapping.report(), spark_tables.report()):
        print(line, flush=True)
    return _on_brokers(brokers, work)


def _before(broker: Broker, checkout: Path, messages: int, rounds: int) -> None:
    for line in before.report(broker, checkout, messages, rounds):
        print(line, flush=True)


def _on_brokers(names: list[str], work: Callable[[Broker], object]) -> int:
    """Do the work on each broker; return the exit code, which is 1 where the work said `False`."""
    code = 0
    try:
        for name in names:
            broker = _fresh(name)
            print(f"\n{name}")
            try:
                broker.fetch()
            except ServerUnavailableError as error:
                print(f"  left out: {error}")
                continue
            broker.start()
            try:
                if work(broker) is False:
                    code = 1
            finally:
                broker.stop()
    except ServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return code


def _fresh(name: str) -> Broker:
    """Return a broker without messages: those an interrupted run left would fill its store in the end."""
    folder = run_folder() / "bench" / name
    left = make_broker(name, folder)
    if left.adopt():
        raise ServerError(f"{name} in {folder} runs already: is another benchmark under way?")
    left.discard()
    broker = make_broker(name, folder)
    if isinstance(broker, ActiveMQClassic):
        broker.heap = "2g"
    return broker


def _bench(broker: Broker, messages: int, rounds: int) -> None:
    rivals: list[Rival] = [PlainStomp(broker), BareSocket(broker), Ours(broker)]
    missing: dict[str, str] = {}
    try:
        rivals.insert(1, JavaRival(broker))
    except ServerError as error:
        missing[JAVA] = str(error)
    try:
        for rival in rivals:
            print(f"  {rival.who}: {rival.manner()}")
        for who, why in missing.items():
            print(f"  {who}: LEFT OUT: {why}")
        print("  rate, processor time of client and broker for each message, who, what")
        measured = list(_rounds(rivals, messages, rounds))
    finally:
        for rival in rivals:
            rival.close()
    medians = table.medians(measured)
    print(f" medians, {broker.name}")
    for line in table.rows(medians):
        print(line)
    print(f" goals, {broker.name}")
    verdicts = list(table.verdicts(measured, missing))
    for _, line in verdicts:
        print(line)
    for line in table.bounds(measured):
        print(line)
    if broker.name == "activemq":
        for line in parked.report(broker.settings()):
            print(line, flush=True)
    print(f"  {sum(met is True for met, _ in verdicts)} of {len(verdicts)} goals met", flush=True)


def _rounds(rivals: list[Rival], messages: int, rounds: int) -> Iterator[Measured]:
    for number in range(rounds + 1):
        # Everybody comes first now and then: what runs behind another finds the broker warm, or busy.
        turn = number % len(rivals)
        for leg in _LEGS:
            for rival in rivals[turn:] + rivals[:turn]:
                work = rival.legs().get(leg)
                for one in () if work is None else work(messages):
                    print(f"  {number or 'warm-up':>7}  {table.row(one)}", flush=True)
                    if number:
                        yield one


if __name__ == "__main__":
    sys.exit(main())
