"""The model of `test_machine_model`, with several destinations, an in-progress queue and room that is shared.

I4, I5 turns; I9, I11 in progress and in doubt; W2, W4, W12 places and a limit for several members together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from airflow_provider_jmsjca.core.delivery import decisions as d
from airflow_provider_jmsjca.core.delivery import events as e
from airflow_provider_jmsjca.core.delivery.concurrency import ConcurrencyLimit, Permits
from airflow_provider_jmsjca.core.delivery.machine import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.redelivery import RedeliveryHandling, RedeliveryTracker
from tests.unit.core.delivery.test_machine_model import CHANCE, EXAMPLES, HANDLINGS, Model, Stored

SOURCES = tuple(Destination.queue(name) for name in "abc")


@dataclass
class Placed(Stored):
    """A message in one of several queues, or in progress."""

    in_progress: bool = False
    process: int = 0  # which process put it in progress


@dataclass
class Neighbour:
    """Another member: it takes what it may when something comes and when it is woken."""

    share: Permits = field(init=False)
    awake: bool = False
    waiting: int = 0
    under_way: int = 0
    settled: int = 0

    def join(self, room: ConcurrencyLimit) -> None:
        self.share = room.join(self.wake)

    def wake(self) -> None:
        self.awake = True

    def report(self) -> None:
        self.share.report(units=self.under_way, taken=self.under_way, settled=self.settled)

    def fill(self) -> None:
        self.awake = False
        self.report()
        while self.waiting and self.share.admit(unit=True):
            self.waiting -= 1
            self.under_way += 1
        self.report()
        if not self.waiting:
            self.share.withdraw()

    def end(self, *, settles: bool) -> None:
        self.under_way -= 1
        self.settled += settles
        self.waiting += not settles
        self.fill()


class Shared(Model):
    """A machine with all of that, and a neighbour."""

    @initialize(
        concurrency=st.integers(1, 3),
        batch_size=st.integers(1, 3),
        sources=st.integers(1, 3),
        quantity=st.integers(1, 2),
        in_progress=st.booleans(),
        hold=st.booleans(),
        limit=st.none() | st.integers(1, 8),
        handling=st.sampled_from(HANDLINGS),
    )
    def begin(  # type: ignore[override]  # noqa: PLR0917 - called by hypothesis, by name
        self,
        concurrency: int,
        batch_size: int,
        sources: int,
        quantity: int,
        in_progress: bool,
        hold: bool,
        limit: int | None,
        handling: str,
    ) -> None:
        first, *further = SOURCES[:sources]
        self.settings = DeliverySettings(
            destination=first,
            further=tuple(further),
            quantity=quantity,
            in_progress=in_progress,
            handling=RedeliveryHandling.parse(handling),
            non_retryable=frozenset({"shop.Fatal"}),
            concurrency=concurrency,
            batch_size=batch_size,
            hold_until_ack=hold,
        )
        self.limit = limit
        self.processes = 0
        self.begin_empty()

    def new_machine(self) -> DeliveryMachine:
        self.processes += 1
        self.settled = 0
        self.in_flight: set[str] = set()
        self.awake = False
        room = ConcurrencyLimit(self.settings.concurrency, self.limit)
        self.neighbour = Neighbour()
        self.neighbour.join(room)
        return DeliveryMachine(self.settings, RedeliveryTracker(), lambda: CHANCE, room.join(self.wake))

    def wake(self) -> None:
        self.awake = True

    def send(self, event: e.Event) -> None:
        super().send(event)
        self.serve_the_woken()

    def serve_the_woken(self) -> None:
        while self.awake or self.neighbour.awake:
            if self.neighbour.awake:
                self.neighbour.fill()
            if self.awake:
                self.awake = False
                super().send(e.Tick())

    # -- driver ----------------------------------------------------------------------------------------

    def carry_out(self, decision: d.Decision) -> None:
        if isinstance(decision, d.Stage):
            message = self.message(decision.delivery)
            assert isinstance(message, Placed)
            assert self.settings.in_progress
            assert not message.in_progress
            assert not message.never_delivered
            self.take_out(decision.unit, decision.delivery, decision)  # type: ignore[arg-type]  # one more kind
            return
        super().carry_out(decision)

    def deliver(self, decision: d.Deliver) -> None:
        message = self.message(decision.delivery)
        assert isinstance(message, Placed)
        assert message.in_progress == self.settings.in_progress
        if message.in_progress and message.process != self.processes:
            assert decision.in_doubt, "an earlier process may have handled it"
        super().deliver(decision)

    def apply(self, decision: d.CommitUnit | d.MoveMessage | d.DeleteMessage | d.Park | d.Stage) -> None:
        if not isinstance(decision, d.Stage):
            super().apply(decision)
            return
        message = self.settle(decision.delivery)
        assert isinstance(message, Placed)
        # The way there may count as a sighting (the broker's flag, an outcome in doubt), and needs not.
        self.last_seen.setdefault(message.label, 0)
        self.stored.append(
            replace(message, delivery=None, redelivered=False, in_progress=True, process=self.processes)
        )

    def end_unit(self, number: int, how: str) -> None:
        decision = self.pending[number]
        if how == "commit" and number not in self.dead:
            if isinstance(decision, d.Stage):
                self.in_flight.add(self.outstanding[decision.delivery].label)
            else:
                self.settled += len(decision.acknowledge) if isinstance(decision, d.CommitUnit) else 1
        super().end_unit(number, how)

    def receiver(self, message: Stored) -> int | None:
        assert isinstance(message, Placed)
        return None if message.in_progress else message.source

    def hand_back(self) -> None:
        super().hand_back()
        self.in_flight.clear()

    def arrival(self, message: Stored) -> e.MessageArrived:
        assert isinstance(message, Placed)
        self.in_flight.discard(message.label)
        return replace(
            super().arrival(message),
            source=message.source,
            in_progress=message.in_progress,
            left=message.in_progress and message.process != self.processes,
        )

    # -- what can happen -------------------------------------------------------------------------------

    @rule(
        group=st.sampled_from([None, None, "a", "b"]),
        damage=st.sampled_from([None] * 8 + ["undecodable", "unsubscribed"]),
        name=st.sampled_from(["own"] * 6 + ["none", "another's"]),
        source=st.integers(0, 2),
    )
    def publish(  # type: ignore[override]  # called by hypothesis, by name
        self, group: str | None, damage: str | None, name: str, source: int
    ) -> None:
        if self.settings.in_progress:
            name = "own"  # it is by their ids that messages in progress are followed
        self.publish_to(source % len(self.settings.sources), group, damage, name)

    def new_message(self, label: str, message_id: str | None, source: int) -> Stored:
        return Placed(label, message_id, source=source)

    @rule(count=st.integers(1, 3))
    def neighbour_receives(self, count: int) -> None:
        self.neighbour.waiting += count
        self.neighbour.fill()
        self.serve_the_woken()

    @precondition(lambda self: self.neighbour.under_way)
    @rule(settles=st.booleans())
    def neighbour_ends(self, settles: bool) -> None:
        self.neighbour.end(settles=settles)
        self.serve_the_woken()

    @rule()
    def neighbour_is_lost(self) -> None:
        self.neighbour.waiting = self.neighbour.under_way = 0
        self.neighbour.fill()
        self.serve_the_woken()

    # -- what must hold --------------------------------------------------------------------------------

    @invariant()
    def none_slips_out_of_hand(self) -> None:
        if hasattr(self, "machine") and self.consuming and self.machine.state == "Up":
            assert self.machine.in_flight + self.kept == len(self.outstanding) + len(self.in_flight)

    @invariant()
    def never_too_much(self) -> None:
        if not hasattr(self, "machine"):
            return
        units = {unit for unit, _ in self.calls.values()} | set(self.units)
        assert len(units) + self.neighbour.under_way <= self.settings.concurrency
        if self.limit is not None:
            # What can't be committed any more doesn't count.
            messages = sum(len(unit.deliveries) for unit in self.units.values() if not unit.bad)
            neighbour = self.neighbour.under_way + self.neighbour.settled
            assert messages + self.settled + neighbour <= self.limit

    def teardown(self) -> None:
        if hasattr(self, "machine") and self.limit is not None:
            self.limit = None
            self.crash()
        super().teardown()
        if hasattr(self, "machine"):
            while self.neighbour.under_way:
                self.neighbour_ends(settles=True)
            assert not self.neighbour.waiting, "it was woken when there was room"

    def advance(self) -> bool:
        if super().advance():
            return True
        if self.neighbour.under_way:
            self.neighbour_ends(settles=True)
            return True
        return False


Shared.TestCase.settings = hypothesis_settings(max_examples=EXAMPLES, stateful_step_count=50, deadline=None)
TestShared = pytest.mark.timeout(1200)(Shared.TestCase)
