"""Random histories against a model broker: nothing is lost, nothing settled twice, whatever step is cut.

J81-J84 concurrency, J129-J132 counts, J142 and J167 cascade, J183-J191 batches, J192-J203 hold-until-ack.
With one message in hand at a time, everything is settled in the order of arrival, but for what must stay. So
is everything from a consumer whose batches are settled with one acknowledgement.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow_provider_jmsjca.core.delivery import decisions as d
from airflow_provider_jmsjca.core.delivery import events as e
from airflow_provider_jmsjca.core.delivery.machine import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.states import FastPathUnit
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import (
    Action,
    Delay,
    Delete,
    GrowingDelay,
    Move,
    RedeliveryHandling,
    RedeliveryTracker,
)
from airflow_provider_jmsjca.core.redelivery.tracker import UNSEEN

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "200"))
FAILURE = Failure(class_names=("shop.Broken", "builtins.Exception"), message="broken")
# Rules that may run at any time do so at 0 only: otherwise nearly every history would consist of them, and no
# message would ever be handled.
LUCK = st.integers(0, 29)
CHANCE = 0.5
MOST_MOVES = 5
ON_THE_WAY = 2  # messages that the broker has sent and that haven't arrived
OUTCOMES = ["commit", "commit", "commit", "fail", "lost", "before", "after"]
FATAL = Failure(class_names=("shop.Fatal", "builtins.Exception"), message="fatal")
HANDLINGS = [
    "",
    "1:10",
    "1:0; 3:move(queue:dlq)",
    "2:6000; 3:move(queue:dlq,topic:alarm)",
    "1:backoff(10,2,20000,0.5); 4:delete",
    "2:delete",
    "1:delete",
    "1:move(queue:dlq)",
]


@dataclass
class Stored:
    """A message at the broker.

    Attributes:
        label: What the model calls it.
        message_id: What its producer calls it, and maybe others too.
        handed: How often this process handed it over.
        tried: What may count at most: hand-overs, moves and deletions; a process that died may have had one.
        delivery: Outstanding under this number.
    """

    label: str
    message_id: str | None
    group: str | None = None
    undecodable: bool = False
    unsubscribed: bool = False
    parked: int | None = None
    redelivered: bool = False
    handed: int = 0
    tried: int = 0
    delivery: int | None = None
    source: int = 0
    consumer: int | None = None

    @property
    def never_delivered(self) -> bool:
        return self.undecodable or self.unsubscribed


@dataclass
class UnitModel:
    """What the model saw of a unit."""

    deliveries: list[int] = field(default_factory=list)
    unacknowledged: set[int] = field(default_factory=set)
    bad: bool = False
    ended: bool = False  # EndOfBatch was delivered


def pause_of(action: Action | None, seen: int) -> timedelta:
    return action.pause(seen, CHANCE) if isinstance(action, Delay | GrowingDelay) else timedelta(0)


class Model(RuleBasedStateMachine):
    """The driver, the broker and the checks."""

    @initialize(
        concurrency=st.integers(1, 3),
        batch_size=st.integers(1, 3),
        hold=st.booleans(),
        record=st.booleans(),
        non_blocking_redelivery=st.booleans(),
        flush=st.booleans(),
        handling=st.sampled_from(HANDLINGS),
        keep_poison=st.booleans(),
        unsubscribed=st.none() | st.just(Destination.queue("unsubscribed")),
        move_retries=st.sampled_from([None, None, 0, 2]),
        consumers=st.integers(0, 3),
    )
    def begin(  # noqa: PLR0917 - called by hypothesis, by name
        self,
        concurrency: int,
        batch_size: int,
        hold: bool,
        record: bool,
        non_blocking_redelivery: bool,
        flush: bool,
        handling: str,
        keep_poison: bool,
        unsubscribed: Destination | None,
        move_retries: int | None,
        consumers: int,
    ) -> None:
        self.settings = DeliverySettings(
            destination=Destination.queue("orders"),
            handling=RedeliveryHandling.parse(handling),
            non_retryable=frozenset({"shop.Fatal"}),
            concurrency=concurrency,
            batch_size=batch_size,
            batch_flush=timedelta(seconds=1) if flush else None,
            hold_until_ack=hold,
            record_attempts=record,
            non_blocking_redelivery=non_blocking_redelivery,
            keep_poison=keep_poison,
            unsubscribed=unsubscribed,
            move_retries=move_retries,
        )
        self.consumers = consumers if batch_size > 1 else 0
        self.begin_empty()

    consumers = 0  # that settle in order

    def begin_empty(self) -> None:
        """Begin with nothing at the broker."""
        self.openings = 0
        self.called: Counter[tuple[str | None, int]] = Counter()
        self.now = 0.0
        self.next_delivery = 0
        self.published = 0
        self.stored: list[Stored] = []
        self.outstanding: dict[int, Stored] = {}
        self.ids: dict[int, Stored] = {}
        self.gone: list[str] = []
        self.kept = 0
        self.left = False
        self.attempts: dict[str | None, int] = {}
        self.start_process()

    # -- driver ----------------------------------------------------------------------------------------

    def start_process(self) -> None:
        for message in self.stored:
            message.handed = 0
            message.tried = max(message.tried + 1, self.attempts.get(message.message_id, 0))
        self.machine = self.new_machine()
        self.connecting = self.connected = self.consuming = self.running = self.suspended = False
        self.stopping = False
        self.directs: dict[int, FastPathUnit] = {}  # by unit
        self.calls: dict[int, tuple[int, int | None]] = {}  # call -> unit, delivery
        self.held: dict[int, int] = {}  # call -> unit: acknowledgement outstanding
        self.pending: dict[int, d.CommitUnit | d.MoveMessage | d.DeleteMessage | d.Park] = {}
        self.dead: set[int] = set()
        self.recording: list[d.RecordAttempt] = []
        self.units: dict[int, UnitModel] = {}
        self.last_seen: dict[str, int] = {}
        self.own_handling: dict[str, RedeliveryHandling] = {}
        self.poison: set[int] = set()
        self.refused: set[int] = set()  # could not be moved or deleted
        self.not_moved: set[int] = set()
        # By label: moves in a row whose connection was lost. A broker may refuse so.
        self.failed_moves: Counter[str] = Counter()
        self.waits: dict[int, tuple[timedelta, timedelta]] = {}  # delivery -> so far, still to come
        self.send(e.Start())
        self.running = True

    def new_machine(self) -> DeliveryMachine:
        return DeliveryMachine(
            self.settings, RedeliveryTracker(), lambda: CHANCE, take_back=self.take_attempt_back
        )

    def take_attempt_back(self, message_id: str, source: int) -> None:
        assert source == 0
        self.attempts[message_id] -= 1
        assert self.attempts[message_id] >= 0

    def send(self, event: e.Event) -> None:
        for decision in self.machine.handle(event, self.now):
            self.carry_out(decision)
        assert len(self.calls) <= self.settings.concurrency

    def carry_out(self, decision: d.Decision) -> None:  # noqa: C901, PLR0912, PLR0915 - one case for each decision
        match decision:
            case d.Connect():
                assert not self.connecting
                assert not self.connected
                self.connecting = True
            case d.OpenConsumer():
                assert self.connected
                assert not self.consuming
                self.consuming = True
                self.machine.subscribed()
            case d.CloseConsumer():
                assert self.consuming or not self.connected  # it may not know yet that the connection is lost
                assert not self.calls
                assert not self.pending
                self.hand_back()
            case d.CloseConnection():
                self.disconnect()
                self.connecting = False
            case d.RecordAttempt(delivery=delivery):
                self.message(delivery)
                self.recording.append(decision)
            case d.Deliver():
                self.deliver(decision)
            case d.DeliverEndOfBatch(call=call, unit=number, batch_index=index, rollback=rollback):
                unit = self.units[number]
                assert self.settings.batch_size > 1
                assert index == len(unit.deliveries) > 0
                assert not unit.ended
                assert rollback or not unit.bad
                unit.ended = True
                self.call(call, number, None)
            case d.CommitUnit(unit=number, acknowledge=acknowledge):
                unit = self.units[number]
                assert not unit.bad
                assert not unit.unacknowledged
                assert unit.ended or self.settings.batch_size == 1
                assert list(acknowledge) == unit.deliveries
                assert number not in {owner for owner, _ in self.calls.values()}
                self.pending[number] = decision
            case d.RollBackUnit(unit=number):
                del self.units[number]
            case d.MoveMessage(unit=number, delivery=delivery, targets=targets, state=state):
                assert targets
                if self.is_alone(message := self.message(delivery)):
                    assert targets == self.expected_targets(message, delivery, state.seen)
                    self.check_count(message, state.seen)
                self.take_out(number, delivery, decision)
            case d.DeleteMessage(unit=number, delivery=delivery, seen=seen):
                if self.is_alone(message := self.message(delivery)):
                    assert isinstance(self.action(message, seen), Delete)
                    self.check_count(message, seen)
                self.take_out(number, delivery, decision)
            case d.Park(unit=number, delivery=delivery, pause=pause, seen=seen):
                assert pause > timedelta(seconds=5)
                if self.is_alone(message := self.message(delivery)):
                    assert pause == pause_of(self.action(message, seen), seen)
                self.take_out(number, delivery, decision)
            case d.Wait(delivery=delivery, pause=pause, left=left):
                assert not self.resting, "nothing begins to wait any more"
                assert timedelta(0) < pause <= timedelta(seconds=5)
                so_far, to_come = self.waits.get(delivery, (timedelta(0), timedelta(0)))
                goes_on = to_come == pause + left
                self.waits[delivery] = (so_far if goes_on else timedelta(0)) + pause, left
            case d.Stopped():
                assert not self.connected
                self.running = False
                self.calls.clear()  # handlers that were left alone
                self.held.clear()
                self.units.clear()
            case d.Leave(delivery=delivery):
                if self.connected:  # otherwise the broker has it back already
                    assert delivery in self.outstanding
                    self.left = True
                    self.kept += 1
            case d.Log():
                pass

    @property
    def resting(self) -> bool:
        """Whether it has been told to begin nothing more."""
        return self.suspended or self.stopping

    def message(self, delivery: int) -> Stored:
        """Return a message in hand, or of a connection whose loss the machine has yet to hear of."""
        if delivery not in self.outstanding:
            assert not self.connected
            return self.ids[delivery]
        return self.outstanding[delivery]

    def is_alone(self, message: Stored) -> bool:
        """Say whether everything that is known under its id is about this message."""
        return self.called[message.message_id, message.source] <= 1

    def action(self, message: Stored, seen: int) -> Action | None:
        """Return what redelivery handling says, by its own rule for counts."""
        return self.own_handling.get(message.label, self.settings.handling).action_for(seen)

    def expected_targets(self, message: Stored, delivery: int, seen: int) -> tuple[Destination, ...]:
        origin = self.settings.sources[message.source]
        if message.unsubscribed:
            return () if self.settings.unsubscribed is None else (self.settings.unsubscribed,)
        if (targets := self.poison_targets(message, delivery)) is not None:
            return targets
        action = self.action(message, seen)
        return action.targets(origin) if isinstance(action, Move) else ()

    def poison_targets(self, message: Stored, delivery: int) -> tuple[Destination, ...] | None:
        """Return where a message goes whatever its count is; `None`: its count says."""
        if message.undecodable or delivery in self.poison:
            for handling in (self.own_handling.get(message.label), self.settings.handling):
                if handling and handling.actions and isinstance(handling.actions[-1], Move):
                    return handling.actions[-1].targets(self.settings.sources[message.source])
        return None

    def check_action(self, message: Stored, decision: d.Deliver) -> None:
        """Check that a message is delivered when its count says so, and after the pause that it says."""
        waited, left = self.waits.pop(decision.delivery, (timedelta(0), timedelta(0)))
        assert not left
        assert decision.delivery not in self.not_moved or self.settings.move_retries is None, "it stays (P16)"
        failed_moves = self.failed_moves.pop(message.label, 0)
        if decision.delivery in self.refused or not self.is_alone(message):
            return
        if failed_moves > MOST_MOVES and self.settings.move_retries is None:
            return  # it is delivered for once, as nothing else helps
        action = self.action(message, decision.seen)
        assert not isinstance(action, Move | Delete)
        assert self.poison_targets(message, decision.delivery) is None
        assert not (decision.delivery in self.poison and self.settings.keep_poison)
        if self.settings.batch_size == 1 and message.parked is None:
            assert waited == pause_of(action, decision.seen)

    def take_out(
        self, number: int, delivery: int, decision: d.MoveMessage | d.DeleteMessage | d.Park
    ) -> None:
        message = self.message(delivery)
        if not isinstance(decision, d.Park):
            message.tried += 1
        self.pending[number] = decision
        if not self.connected:
            self.dead.add(number)

    def deliver(self, decision: d.Deliver) -> None:
        message = self.message(decision.delivery)
        unit = self.units.setdefault(decision.unit, UnitModel())
        unit.bad |= not self.connected
        assert not message.never_delivered
        assert not self.resting, "nothing is delivered any more"
        assert not unit.ended
        assert decision.batch_index == len(unit.deliveries) < self.settings.batch_size
        assert decision.unit not in {owner for owner, _ in self.calls.values()}, "one thread for each unit"
        for other, delivery in self.calls.values():
            if delivery is not None:
                running = self.ids[delivery]
                assert running.label != message.label
                assert other == decision.unit or running.group is None or running.group != message.group
        label = message.label
        if self.is_alone(message):
            if not message.redelivered and label not in self.last_seen and message.parked is None:
                assert decision.seen == self.attempts.get(message.message_id, 1) - 1
            assert decision.seen >= self.last_seen.get(label, 0), "the count never falls"
            if self.settings.record_attempts and message.message_id is not None:
                assert decision.seen + 1 <= self.attempts[message.message_id]
            else:
                assert decision.seen >= message.handed, message
            self.check_count(message, decision.seen)
        self.check_action(message, decision)
        if self.connected or message.message_id is not None:  # without an id only what is in hand is known
            self.last_seen[label] = decision.seen
            message.handed += 1
        message.tried += 1
        unit.deliveries.append(decision.delivery)
        self.call(decision.call, decision.unit, decision.delivery)

    def check_count(self, message: Stored, seen: int) -> None:
        """Check that nothing counts but what was tried, whatever the broker has flagged."""
        stored = self.settings.record_attempts and message.message_id is not None
        if not (stored or message.undecodable):
            assert seen <= message.tried, "a sighting that led to nothing doesn't count"

    def call(self, call: int, unit: int, delivery: int | None) -> None:
        self.calls[call] = unit, delivery
        if self.settings.hold_until_ack:
            self.held[call] = unit
            self.units[unit].unacknowledged.add(call)

    def hand_back(self) -> None:
        if self.consuming:  # what was on its way never arrived, and is flagged all the same
            waiting = (message for message in self.stored if message.delivery is None)
            for message in itertools.islice(waiting, ON_THE_WAY):
                message.redelivered = True
        for message in self.outstanding.values():
            message.delivery = None
            message.redelivered = True
            if message.message_id is None:  # only what is in hand is known
                message.handed = 0
                self.last_seen.pop(message.label, None)
                self.own_handling.pop(message.label, None)
        self.outstanding.clear()
        self.kept = 0
        self.left = False
        self.consuming = False
        self.openings += 1

    def disconnect(self) -> None:
        self.hand_back()
        self.connected = False
        self.dead |= set(self.pending)
        for unit in self.units.values():
            unit.bad = True

    def receiver(self, message: Stored) -> int | None:
        """Return the consumer that received a message, if that one is promised order."""
        return message.consumer or 0

    def settle(self, delivery: int) -> Stored:
        message = self.outstanding[delivery]  # fails if it was settled before
        in_order = message.consumer is not None or self.settings.concurrency == self.settings.batch_size == 1
        receiver = self.receiver(message)
        if in_order and not self.left and receiver is not None:
            mates = (number for number, each in self.outstanding.items() if self.receiver(each) == receiver)
            assert delivery == min(mates), "settled in the order of arrival"
        del self.outstanding[delivery]
        self.stored.remove(message)
        return message

    def apply(self, decision: d.CommitUnit | d.MoveMessage | d.DeleteMessage | d.Park) -> None:
        match decision:
            case d.CommitUnit(acknowledge=acknowledge):
                self.gone += [self.settle(delivery).label for delivery in acknowledge]
            case d.MoveMessage(delivery=delivery) | d.DeleteMessage(delivery=delivery):
                self.gone.append(self.settle(delivery).label)
            case d.Park(delivery=delivery, seen=seen):
                message = self.settle(delivery)
                self.stored.append(replace(message, delivery=None, redelivered=False, parked=seen))

    @invariant()
    def none_slips_out_of_hand(self) -> None:
        if hasattr(self, "machine") and self.consuming and self.machine.state == "Up":
            assert self.machine.in_flight + self.kept == len(self.outstanding)

    # -- what can happen -------------------------------------------------------------------------------

    @rule(
        group=st.sampled_from([None, None, "a", "b"]),
        damage=st.sampled_from([None] * 8 + ["undecodable", "unsubscribed"]),
        name=st.sampled_from(["own"] * 6 + ["none", "another's"]),
        before=st.sampled_from([0] * 6 + [3]),
    )
    def publish(self, group: str | None, damage: str | None, name: str, before: int) -> None:
        message = self.publish_to(0, group, damage, name)
        message.redelivered = before > 0  # by another client
        message.tried = before

    def publish_to(self, source: int, group: str | None, damage: str | None, name: str) -> Stored:
        self.published += 1
        label = f"ID:{self.published}"
        message_id = {"own": label, "none": None, "another's": f"ID:{max(self.published - 1, 1)}"}[name]
        message = self.new_message(label, message_id, source)
        message.group, message.undecodable = group, damage == "undecodable"
        message.unsubscribed = damage == "unsubscribed"
        if message_id is not None:
            self.called[message_id, source] += 1
        self.stored.append(message)
        return message

    def new_message(self, label: str, message_id: str | None, source: int) -> Stored:
        return Stored(label, message_id, source=source)

    @precondition(lambda self: self.connecting)
    @rule(how=st.sampled_from(["works"] * 9 + ["fails", "is refused", "has no consumer"]))
    def connect(self, how: str = "works") -> None:
        self.connecting = False
        self.connected = how in {"works", "has no consumer"}
        if not self.connected:
            self.send(e.ConnectFailed(failure=FAILURE, permanent=how == "is refused"))
            assert how != "is refused" or self.machine.state in {"Down", "Disconnecting"}
            return
        self.send(e.ConnectionOpened())
        if self.consuming:
            fails = how == "has no consumer"
            self.send(e.ConnectFailed(failure=FAILURE) if fails else e.ConsumerOpened())

    @precondition(lambda self: self.consuming and any(m.delivery is None for m in self.stored))
    @rule(direct=st.booleans())
    def arrive(self, direct: bool = True) -> None:
        message = next(message for message in self.stored if message.delivery is None)
        self.next_delivery += 1
        message.delivery = self.next_delivery
        if self.consumers:
            message.consumer = self.openings * 10 + self.next_delivery % self.consumers + 1
        self.outstanding[self.next_delivery] = message
        self.ids[self.next_delivery] = message
        plain = not (message.redelivered or message.never_delivered) and message.parked is None
        if direct and plain and self.arrive_directly(message):
            return
        self.send(self.arrival(message))

    def arrival(self, message: Stored) -> e.MessageArrived:
        return e.MessageArrived(
            delivery=self.next_delivery,
            message_id=message.message_id,
            group=message.group,
            redelivered=message.redelivered,
            unsubscribed=message.unsubscribed,
            parked=message.parked,
            undecodable=FAILURE if message.undecodable else None,
            consumer=message.consumer,
        )

    def arrive_directly(self, message: Stored) -> bool:
        if message.message_id is None:
            return False
        direct = self.machine.begin_directly(self.next_delivery, message.message_id, message.group, self.now)
        if direct is None:
            return False
        self.directs[direct.unit] = direct
        self.carry_out(
            d.Deliver(
                call=direct.call,
                unit=direct.unit,
                delivery=direct.delivery,
                seen=0,
                batch_index=0,
                in_doubt=False,
                state=UNSEEN,
            )
        )
        return True

    @precondition(lambda self: self.consuming)
    @rule()
    def arrive_all(self) -> None:
        while self.consuming and any(message.delivery is None for message in self.stored):
            self.arrive()

    @precondition(lambda self: self.recording)
    @rule(works=st.sampled_from([True, True, True, False]))
    def record(self, works: bool) -> None:
        asked = self.recording.pop(0)
        if not works:
            self.send(e.AttemptNotRecorded(delivery=asked.delivery, failure=FAILURE))
            return
        number = self.attempts[asked.message_id] = self.attempts.get(asked.message_id, 0) + 1
        self.send(e.AttemptRecorded(delivery=asked.delivery, attempt=number))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), how=st.sampled_from(["return", "return", "raise", "fatal"]))
    def handled(self, data: st.DataObject, how: str) -> None:
        self.end_call(data.draw(st.sampled_from(sorted(self.calls))), how)

    @precondition(lambda self: self.calls)
    @rule(
        data=st.data(),
        handling=st.none() | st.sampled_from(HANDLINGS),
        how=st.sampled_from(["return", "raise"]),
    )
    def leave_something(self, data: st.DataObject, handling: str | None, how: str) -> None:
        call = data.draw(st.sampled_from(sorted(self.calls)))
        own = None if handling is None else RedeliveryHandling.parse(handling)
        _, delivery = self.calls[call]
        message = None if delivery is None else self.ids[delivery]
        if own and message and (delivery in self.outstanding or message.message_id):
            self.own_handling[message.label] = own
        self.send(e.StateSet(call=call, handling=own, rollback_data=None if own else {"key": "value"}))
        self.end_call(call, how)

    def end_call(self, call: int, how: str) -> None:
        unit, delivery = self.calls.pop(call)
        direct = self.directs.get(unit)
        if how == "return" and direct is not None and self.machine.returned_directly(direct):
            assert direct.call == call
            self.carry_out(d.CommitUnit(unit=unit, acknowledge=(direct.delivery,)))
            return
        if how == "return":
            self.send(e.HandlerReturned(call=call))
            return
        if unit in self.units:
            self.units[unit].bad = True
            self.units[unit].unacknowledged.discard(call)
        self.held.pop(call, None)
        if delivery is not None:
            (self.poison.add if how == "fatal" else self.poison.discard)(delivery)
        self.send(e.HandlerRaised(call=call, failure=FATAL if how == "fatal" else FAILURE))

    @property
    def callable_no_more(self) -> list[int]:
        """Calls whose handlers need not be called: their connection is gone, or the driver stops."""
        return sorted(
            call
            for call, (_, delivery) in self.calls.items()
            if delivery is not None and (self.stopping or delivery not in self.outstanding)
        )

    @precondition(lambda self: self.callable_no_more)
    @rule(data=st.data())
    def not_called(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.callable_no_more))
        unit, delivery = self.calls.pop(call)
        assert delivery is not None
        if unit in self.units:
            self.units[unit].bad = True
            self.units[unit].unacknowledged.discard(call)
        self.held.pop(call, None)
        message = self.ids[delivery]
        message.handed = max(message.handed - 1, 0)
        message.tried -= 1
        self.last_seen[message.label] = max(self.last_seen.get(message.label, 0) - 1, 0)
        self.send(e.HandlerNotCalled(call=call))

    @precondition(lambda self: self.calls or self.held)
    @rule(data=st.data())
    def ask_rollback(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(sorted({*self.calls, *self.held})))
        unit = self.calls[call][0] if call in self.calls else self.held[call]
        if unit in self.units and unit not in self.pending:
            self.units[unit].bad = True
        self.send(e.RollbackAsked(call=call))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        self.end_hold(data.draw(st.sampled_from(sorted(self.held))))

    def end_hold(self, call: int) -> None:
        unit = self.held.pop(call)
        if unit in self.units:
            self.units[unit].unacknowledged.discard(call)
        self.send(e.Acknowledged(call=call))

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), how=st.sampled_from(OUTCOMES))
    def outcome(self, data: st.DataObject, how: str) -> None:
        self.end_unit(data.draw(st.sampled_from(sorted(self.pending))), how)

    def end_unit(self, number: int, how: str) -> None:
        decision = self.pending.pop(number)
        self.units.pop(number, None)
        if isinstance(decision, d.MoveMessage) and (number in self.dead or how not in {"commit", "fail"}):
            self.failed_moves[self.ids[decision.delivery].label] += 1
        if number in self.dead:
            self.dead.discard(number)
            self.send(e.UnitInDoubt(unit=number) if how == "after" else e.UnitLost(unit=number))
        elif how == "commit":
            self.apply(decision)
            direct = self.directs.pop(number, None)
            if direct is None or not self.machine.committed_directly(direct):
                self.send(e.UnitCommitted(unit=number))
        elif how == "fail":
            if isinstance(decision, d.MoveMessage | d.DeleteMessage):
                self.refused.add(decision.delivery)
                if isinstance(decision, d.MoveMessage):
                    self.not_moved.add(decision.delivery)
            self.send(e.UnitFailed(unit=number, failure=FAILURE))
        else:
            if how == "after":
                self.apply(decision)
            self.disconnect()
            self.send(e.UnitLost(unit=number) if how == "lost" else e.UnitInDoubt(unit=number))
            self.send(e.ConnectionLost(failure=FAILURE))

    @precondition(lambda self: self.connected)
    @rule(luck=LUCK)
    def cut(self, luck: int = 0) -> None:
        if luck:
            self.go_on(luck)
            return
        self.disconnect()
        self.send(e.ConnectionLost(failure=FAILURE))

    @precondition(lambda self: self.machine.deadline is not None)
    @rule()
    def time_passes(self) -> None:
        assert self.machine.deadline is not None
        self.now = max(self.now, self.machine.deadline)
        self.send(e.Tick())

    @rule(luck=LUCK)
    def suspend(self, luck: int) -> None:
        if luck:
            self.go_on(luck)
            return
        self.suspended = True
        self.send(e.SuspendAsked())

    @precondition(lambda self: self.suspended)
    @rule()
    def resume(self) -> None:
        self.suspended = False
        self.send(e.ResumeAsked())

    @rule(call=st.integers(0, 200), unit=st.integers(0, 200), luck=LUCK)
    def stale(self, call: int, unit: int, luck: int) -> None:
        """Events about what is over change nothing."""
        if luck:
            self.go_on(luck)
            return
        known = {*self.calls, *self.held, *self.pending, *self.units}
        if call not in known:
            self.send(e.HandlerReturned(call=call))
            self.send(e.Acknowledged(call=call))
        if unit not in known:
            self.send(e.UnitCommitted(unit=unit))
            self.send(e.UnitFailed(unit=unit, failure=FAILURE))

    @precondition(lambda self: self.running)
    @rule(luck=LUCK)
    def stop(self, luck: int) -> None:
        if luck:
            self.go_on(luck)
            return
        self.stopping = True
        self.send(e.StopAsked(reason="enough"))

    @precondition(lambda self: not self.running)
    @rule()
    def start_again(self) -> None:
        assert not self.outstanding
        self.running, self.stopping = True, False
        self.send(e.Start())

    @rule(luck=LUCK)
    def crash(self, luck: int = 0) -> None:
        if luck:
            self.go_on(luck)
            return
        self.disconnect()
        self.start_process()

    def go_on(self, luck: int) -> None:
        """Do what comes next, with good or bad luck."""
        if self.pending and luck % 3:
            self.end_unit(min(self.pending), OUTCOMES[luck % len(OUTCOMES)])
        elif self.calls and luck % 5 == 0:
            self.end_call(min(self.calls), "raise" if luck % 2 else "fatal")
        else:
            self.advance()

    # -- the end ---------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        self.resume()
        # What was kept unsettled comes again, and its moves count anew: also where they fell short only now.
        for _ in range(3):
            if self.connected:
                self.cut()
            for _ in range(2000):
                if not self.advance():
                    break
            left = [message for message in self.stored if not message.never_delivered]
            if not left:
                break
        assert not left, "every message is settled in the end"
        kept = [message.label for message in self.stored]
        assert sorted(self.gone + kept) == sorted(f"ID:{number + 1}" for number in range(self.published))
        assert self.machine.idle

    def advance(self) -> bool:
        if not self.running:
            self.start_again()
        elif self.connecting:
            self.connect()
        elif self.recording:
            self.record(works=True)
        elif self.calls:
            self.end_call(min(self.calls), "return")
        elif self.held:
            self.end_hold(min(self.held))
        elif self.pending:
            self.end_unit(min(self.pending), "commit")
        elif self.consuming and any(message.delivery is None for message in self.stored):
            self.arrive()
        elif self.machine.deadline is not None:
            self.time_passes()
        else:
            return False
        return True


Model.TestCase.settings = hypothesis_settings(max_examples=EXAMPLES, stateful_step_count=50, deadline=None)
TestModel = pytest.mark.timeout(1200)(Model.TestCase)
