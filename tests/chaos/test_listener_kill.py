"""A listening process, its broker or the way between them fails anywhere: nothing is lost.

Messages leave their queue by a unit of work, sent on by the handler or moved to the dead-letter queue, alone
or in batches, at once, after delays, or when another thread acknowledges them. What came out twice was
settled twice: ActiveMQ commits both sides at once, Artemis drops the repetition by its id, RabbitMQ may
repeat what was under way. Or the handler sends nothing and writes down what it did. What is there twice was
handled twice, though the broker settled it once: it can't take back what a function did elsewhere.

`JMSJCA_CHAOS=full` makes 40 rounds of 200 messages for each broker, otherwise one for each kind of work.
Where it strikes is new each time; the seed is printed, and `JMSJCA_CHAOS_SEED` repeats it.

Source: J123-J127; docs/reference/broker-facts.md.
"""

from __future__ import annotations

import enum
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import pytest

from airflow_provider_jmsjca import Destination, JmsMessage, Outgoing, connect
from tests.chaos.conftest import Report
from tests.chaos.listener_processes import Ended, ListenerProcess, Work, take_all
from tests.servers.broker import Broker
from tests.servers.proxy import TcpProxy

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
ROUNDS = 40 if FULL else len(Work)
MESSAGES = 200
PREFETCH = 20
POOL = 3
TINY_MESSAGES = 6  # as many of them fit into Artemis' window where one was reckoned with
IDLE_SECONDS = 2.0
# Longer than a broker takes to notice that a client with beats of a second is gone, which Artemis makes 10 s
# now and then.
PATIENCE = 60.0


class Fault(enum.StrEnum):
    """What happens in the middle of a round."""

    CLIENT_KILLED = "client killed"
    BROKER_KILLED = "broker killed"
    CUT = "connection cut"
    SILENT = "connection silent"


class Moment(enum.StrEnum):
    """When it happens."""

    CONNECTING = "while it connects"
    WORKING = "while it works"
    IDLE_END = "at the end, when it is idle"
    STOP = "in a stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """How a round ended.

    Attributes:
        settled_twice: How many messages came out more than there were.
        handled_twice: How many were written down more than there were.
        again: How many deliveries there were more than messages.
        known: How many came again besides, and weren't delivered, for the listener had settled them.
        stuck: How many the broker kept until it was restarted, which the listener said.
    """

    settled_twice: int
    handled_twice: int
    again: int
    known: int
    stuck: int


def wait_for(moment: Moment, listener: ListenerProcess, chance: random.Random) -> None:
    """Return when it is time to strike."""
    match moment:
        case Moment.CONNECTING:
            time.sleep(chance.random())
        case Moment.WORKING:
            listener.after(chance.randrange(1, MESSAGES))
            time.sleep(chance.random() * 0.003)
        case Moment.IDLE_END:
            listener.after(MESSAGES)
            time.sleep(IDLE_SECONDS + chance.uniform(-0.3, 0.3))
        case Moment.STOP:
            listener.after(chance.randrange(1, MESSAGES))
            listener.tell_to_stop()
            time.sleep(chance.random() * 0.1)
        case _:
            assert_never(moment)


class Story:
    """One round: messages, a fault, and what is to be found afterwards."""

    def __init__(self, broker: Broker, source: str, work: Work, mode: str, folder: Path) -> None:
        self.broker = broker
        self.source = source
        self.work = work
        self.mode = mode
        self.folder = folder
        self.done = folder / f"{source}.done"
        self.done.touch()  # no handler may be called before the first strike
        self.out, self.dead = f"{source}.out", f"{source}.dead"
        self.found: dict[str, Counter[int]] = {self.out: Counter(), self.dead: Counter()}
        self.ended: list[Ended] = []
        self.stuck = 0
        connection = connect(broker.settings())
        target = Destination.queue(source)
        connection.send(
            Outgoing(destination=target, message=JmsMessage.text(str(n))) for n in range(MESSAGES)
        )
        connection.close()

    def listen(self, address: tuple[str, int], idle_for: float) -> ListenerProcess:
        return ListenerProcess(
            self.broker, address, self.source, work=self.work, done=self.done, mode=self.mode,
            prefetch=PREFETCH, idle_for=idle_for, log=self.folder / f"{self.source}.{len(self.ended)}.log",
        )  # fmt: skip

    @property
    def missing(self) -> list[int]:
        there = {self.out: range(0, MESSAGES, 2), self.dead: range(1, MESSAGES, 2)}
        if self.work.is_plain:
            there = {self.out: range(MESSAGES)}
        return [
            number for name, numbers in there.items() for number in numbers if not self.found[name][number]
        ]

    def collect(self) -> None:
        """Take what came out, or what was written down."""
        if self.work.is_plain:
            self.found[self.out] = Counter(map(int, self.done.read_text().split()))
            return
        have = sum(sum(counter.values()) for counter in self.found.values())
        taken = take_all(self.broker, [self.out, self.dead], expected=MESSAGES - have, quiet=1)
        for name, numbers in taken.items():
            self.found[name] += numbers

    def suffer(self, fault: Fault, moment: Moment, chance: random.Random) -> None:
        """Listen until the fault, and beyond if the process survives it."""
        with TcpProxy(self.broker.address()) as proxy:
            listener = self.listen(proxy.address, idle_for=IDLE_SECONDS)
            try:
                wait_for(moment, listener, chance)
                match fault:
                    case Fault.CLIENT_KILLED:
                        listener.kill()
                    case Fault.BROKER_KILLED:
                        self.broker.kill()
                        self.broker.start()
                    case Fault.CUT:
                        proxy.cut()
                    case Fault.SILENT:
                        proxy.silence()
                        # The other half of them never speaks again; these finish their sentence, late.
                        if chance.random() < 0.5:
                            time.sleep(chance.random() * 4)
                            proxy.thaw()
                    case _:
                        assert_never(fault)
                self.ended.append(listener.end())
            finally:
                listener.kill()
        if fault is not Fault.CLIENT_KILLED:
            assert self.ended[0].counts is not None, f"it must go on and end by itself: {self.ended[0].log}"

    def finish(self) -> None:
        """Listen until nothing is left."""
        deadline = time.monotonic() + PATIENCE
        self.collect()
        while True:
            # Long enough to look for what doesn't come.
            self.finish_once(idle_for=6 if self.missing else 1)
            if not self.ended[-1].delivered and (not self.missing or time.monotonic() > deadline):
                break
        if self.missing:
            self.stuck = len(self.missing)
            log = self.ended[-1].log
            assert "for a consumer that is gone" in log, f"{self.missing} don't come, and nobody said: {log}"
            self.broker.kill()
            self.broker.start()
            self.finish_once(idle_for=6)

    def finish_once(self, idle_for: float) -> None:
        ended = self.listen(self.broker.address(), idle_for=idle_for).end()
        assert ended.counts is not None, f"a quiet listener must end by itself: {ended.log}"
        self.ended.append(ended)
        self.collect()

    def check(self) -> Round:
        assert not self.missing, f"lost: {self.missing}; {[ended.log for ended in self.ended]}"
        assert not self.found[self.out].keys() & self.found[self.dead].keys()
        twice = sum((self.found[self.out] + self.found[self.dead]).values()) - MESSAGES
        return Round(
            settled_twice=0 if self.work.is_plain else twice,
            handled_twice=twice if self.work.is_plain else 0,
            again=sum(ended.delivered for ended in self.ended) - MESSAGES,
            known=sum(ended.counts["repeated"] for ended in self.ended if ended.counts is not None),
            stuck=self.stuck,
        )


def bound(broker: str, work: Work, mode: str, fault: Fault, moment: Moment) -> int | None:
    """Return how many messages may be settled or handled twice at most; `None`: that is not known."""
    ends = moment in {Moment.IDLE_END, Moment.STOP}  # and can't know again what it settled
    if fault is Fault.BROKER_KILLED and ends and (broker == "rabbitmq" or work is Work.PLAIN):
        return None  # the broker forgets what it confirmed, or what was on its way to it
    under_way = PREFETCH * (POOL if mode == "sync" else 1)
    match work:
        case _ if broker == "rabbitmq":
            return under_way
        case Work.PLAIN if moment is Moment.STOP or fault in {Fault.CLIENT_KILLED, Fault.SILENT}:
            # Killed or ended before it noticed that nobody hears its acknowledgements.
            return under_way * TINY_MESSAGES if broker == "artemis" else under_way
        case Work.PLAIN | Work.CONFIRMED:
            return POOL
        case _:
            return 0


@pytest.mark.timeout(3600)
def test_whatever_fails_nothing_is_lost(
    any_private_broker: Broker, queue_name: str, tmp_path: Path, report: Report
) -> None:
    """W9, W35."""
    broker = any_private_broker
    seed = int(os.environ.get("JMSJCA_CHAOS_SEED") or int.from_bytes(os.urandom(4)))
    chance = random.Random(seed)  # noqa: S311 - where to strike
    works, faults, moments = (chance.sample(tuple(kind), len(kind)) for kind in (Work, Fault, Moment))
    rounds: list[tuple[Fault, Round]] = []
    began = time.monotonic()
    sources = [f"{queue_name}.{turn}" for turn in range(ROUNDS)]
    broker.put_on_disk(*(f"{source}{ending}" for source in sources for ending in ("", ".out", ".dead")))
    try:
        for turn in range(ROUNDS):
            # Every work meets every fault in 24 rounds; the moments are left to chance.
            shift = turn // 12
            work, fault = works[turn % len(works)], faults[(turn + shift) % len(faults)]
            moment, mode = chance.choice(moments), chance.choice(work.modes)
            what = f"round {turn}, {work}, {mode}, {fault}, {moment}"
            story = Story(broker, sources[turn], work, mode, tmp_path)
            try:
                story.suffer(fault, moment, chance)
                story.finish()
                found = story.check()
            except BaseException as error:
                error.add_note(f"{what}; JMSJCA_CHAOS_SEED={seed}")
                raise
            rounds.append((fault, found))
            print(f"{time.monotonic() - began:.0f} s: {what}: {found}", flush=True)
            most = bound(broker.name, work, mode, fault, moment)
            twice = found.settled_twice + found.handled_twice
            assert most is None or twice <= most, f"{what}: {twice} twice, seed {seed}"
    finally:
        report(
            f"{broker.name}: {len(rounds)} of {ROUNDS} rounds of {MESSAGES} messages without a loss,"
            f" {time.monotonic() - began:.0f} s, JMSJCA_CHAOS_SEED={seed}"
        )
        for fault in Fault:
            those = [found for kind, found in rounds if kind is fault]
            report(
                f"  {fault}: {len(those)} rounds, {sum(each.settled_twice for each in those)} settled twice,"
                f" {sum(each.handled_twice for each in those)} handled twice,"
                f" {sum(each.again for each in those)} delivered again,"
                f" {sum(each.known for each in those)} came again and were known,"
                f" {sum(each.stuck for each in those)} stuck until a restart"
            )
