"""Random histories against a model broker: nothing is lost, nothing settled twice, whatever step is cut.

J81-J84 concurrency, J129-J132 counts, J142 and J167 cascade, J183-J191 batches, J192-J203 hold-until-ack.
With one message in hand at a time, everything is settled in the order of arrival, but for what must stay.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow_provider_jmsjca.core.delivery import DeliveryMachine, DeliverySettings
from airflow_provider_jmsjca.core.delivery import decisions as d
from airflow_provider_jmsjca.core.delivery import events as e
from airflow_provider_jmsjca.core.delivery.direct import Direct
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import RedeliveryHandling, RedeliveryTracker
from airflow_provider_jmsjca.core.redelivery.tracker import UNSEEN

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "150"))
FAILURE = Failure(class_names=("shop.Broken", "builtins.Exception"), message="broken")
# Rules that may run at any time do so at 0 only: otherwise nearly every history would consist of them, and no
# message would ever be handled.
LUCK = st.integers(0, 29)
OUTCOMES = ["commit", "commit", "commit", "fail", "lost", "before", "after"]
FATAL = Failure(class_names=("shop.Fatal", "builtins.Exception"), message="fatal")
HANDLINGS = [
    "",
    "1:10",
    "1:0; 3:move(queue:dlq)",
    "2:6000; 3:move(queue:dlq,topic:alarm)",
    "1:backoff(10,2,20000,0.5); 4:delete",
    "2:delete",
]


@dataclass
class Stored:
    """A message at the broker."""

    message_id: str
    group: str | None = None
    undecodable: bool = False
    parked: int | None = None
    redelivered: bool = False
    delivery: int | None = None  # outstanding under this number


@dataclass
class UnitModel:
    """What the model saw of a unit."""

    deliveries: list[int] = field(default_factory=list)
    unacknowledged: set[int] = field(default_factory=set)
    bad: bool = False
    ended: bool = False  # EndOfBatch was delivered


class Model(RuleBasedStateMachine):
    """The driver, the broker and the checks."""

    @initialize(
        concurrency=st.integers(1, 3),
        batch_size=st.integers(1, 3),
        hold=st.booleans(),
        record=st.booleans(),
        park=st.booleans(),
        flush=st.booleans(),
        handling=st.sampled_from(HANDLINGS),
    )
    def begin(  # noqa: PLR0917 - called by hypothesis, by name
        self,
        concurrency: int,
        batch_size: int,
        hold: bool,
        record: bool,
        park: bool,
        flush: bool,
        handling: str,
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
            park=park,
        )
        self.begin_empty()

    def begin_empty(self) -> None:
        """Begin with nothing at the broker."""
        self.now = 0.0
        self.next_delivery = 0
        self.published = 0
        self.stored: list[Stored] = []
        self.outstanding: dict[int, Stored] = {}
        self.ids: dict[int, Stored] = {}
        self.gone: list[str] = []
        self.kept = 0
        self.left = False
        self.attempts: dict[str, int] = {}
        self.start_process()

    # -- driver ----------------------------------------------------------------------------------------

    def start_process(self) -> None:
        self.machine = self.new_machine()
        self.connecting = self.connected = self.consuming = self.running = self.suspended = False
        self.direct: Direct | None = None
        self.calls: dict[int, tuple[int, int | None]] = {}  # call -> unit, delivery
        self.held: dict[int, int] = {}  # call -> unit: acknowledgement outstanding
        self.pending: dict[int, d.CommitUnit | d.Move | d.Delete | d.Park] = {}
        self.dead: set[int] = set()
        self.recording: list[d.RecordAttempt] = []
        self.units: dict[int, UnitModel] = {}
        self.last_seen: dict[str, int] = {}
        self.send(e.Start())
        self.running = True

    def new_machine(self) -> DeliveryMachine:
        return DeliveryMachine(self.settings, RedeliveryTracker(), lambda: 0.5)

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
            case d.Move(unit=number, delivery=delivery, targets=targets):
                assert targets
                self.take_out(number, delivery, decision)
            case d.Delete(unit=number, delivery=delivery):
                assert self.settings.handling.actions
                self.take_out(number, delivery, decision)
            case d.Park(unit=number, delivery=delivery, pause=pause):
                assert pause > timedelta(seconds=5)
                self.take_out(number, delivery, decision)
            case d.Wait(pause=pause):
                assert timedelta(0) < pause <= timedelta(seconds=5)
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

    def message(self, delivery: int) -> Stored:
        """Return a message in hand, or of a connection whose loss the machine has yet to hear of."""
        if delivery not in self.outstanding:
            assert not self.connected
            return self.ids[delivery]
        return self.outstanding[delivery]

    def take_out(self, number: int, delivery: int, decision: d.Move | d.Delete | d.Park) -> None:
        self.message(delivery)
        self.pending[number] = decision
        if not self.connected:
            self.dead.add(number)

    def deliver(self, decision: d.Deliver) -> None:
        message = self.message(decision.delivery)
        unit = self.units.setdefault(decision.unit, UnitModel())
        unit.bad |= not self.connected
        assert not message.undecodable
        assert not unit.ended
        assert decision.batch_index == len(unit.deliveries) < self.settings.batch_size
        assert decision.unit not in {owner for owner, _ in self.calls.values()}, "one thread for each unit"
        for other, delivery in self.calls.values():
            if delivery is not None:
                running = self.ids[delivery]
                assert running.message_id != message.message_id
                assert other == decision.unit or running.group is None or running.group != message.group
        if not message.redelivered and message.message_id not in self.last_seen and message.parked is None:
            assert decision.seen == self.attempts.get(message.message_id, 1) - 1
        assert decision.seen >= self.last_seen.get(message.message_id, 0), "the count never falls"
        self.last_seen[message.message_id] = decision.seen
        if self.settings.record_attempts:
            assert decision.seen + 1 <= self.attempts[message.message_id]
        unit.deliveries.append(decision.delivery)
        self.call(decision.call, decision.unit, decision.delivery)

    def call(self, call: int, unit: int, delivery: int | None) -> None:
        self.calls[call] = unit, delivery
        if self.settings.hold_until_ack:
            self.held[call] = unit
            self.units[unit].unacknowledged.add(call)

    def hand_back(self) -> None:
        for message in self.outstanding.values():
            message.delivery = None
            message.redelivered = True
        self.outstanding.clear()
        self.kept = 0
        self.left = False
        self.consuming = False

    def disconnect(self) -> None:
        self.hand_back()
        self.connected = False
        self.dead |= set(self.pending)
        for unit in self.units.values():
            unit.bad = True

    def settle(self, delivery: int) -> Stored:
        if self.settings.concurrency == self.settings.batch_size == 1 and not self.left:
            assert delivery == min(self.outstanding), "settled in the order of arrival"
        message = self.outstanding.pop(delivery)  # fails if it was settled before
        self.stored.remove(message)
        return message

    def apply(self, decision: d.CommitUnit | d.Move | d.Delete | d.Park) -> None:
        match decision:
            case d.CommitUnit(acknowledge=acknowledge):
                self.gone += [self.settle(delivery).message_id for delivery in acknowledge]
            case d.Move(delivery=delivery) | d.Delete(delivery=delivery):
                self.gone.append(self.settle(delivery).message_id)
            case d.Park(delivery=delivery, seen=seen):
                message = self.settle(delivery)
                self.stored.append(Stored(message.message_id, message.group, parked=seen))

    @invariant()
    def none_slips_out_of_hand(self) -> None:
        if hasattr(self, "machine") and self.consuming and self.machine.state == "Up":
            assert self.machine.in_hand + self.kept == len(self.outstanding)

    # -- what can happen -------------------------------------------------------------------------------

    @rule(group=st.sampled_from([None, None, "a", "b"]), undecodable=st.sampled_from([False] * 5 + [True]))
    def publish(self, group: str | None, undecodable: bool) -> None:
        self.published += 1
        self.stored.append(Stored(f"ID:{self.published}", group, undecodable))

    @precondition(lambda self: self.connecting)
    @rule(works=st.sampled_from([True, True, True, False]))
    def connect(self, works: bool) -> None:
        self.connecting = False
        self.connected = works
        self.send(e.ConnectionUp() if works else e.ConnectFailed(failure=FAILURE))

    @precondition(lambda self: self.consuming and any(m.delivery is None for m in self.stored))
    @rule(direct=st.booleans())
    def arrive(self, direct: bool = True) -> None:
        message = next(message for message in self.stored if message.delivery is None)
        self.next_delivery += 1
        message.delivery = self.next_delivery
        self.outstanding[self.next_delivery] = message
        self.ids[self.next_delivery] = message
        plain = not (message.redelivered or message.undecodable) and message.parked is None
        if direct and plain and self.arrive_directly(message):
            return
        self.send(self.arrival(message))

    def arrival(self, message: Stored) -> e.MessageArrived:
        return e.MessageArrived(
            delivery=self.next_delivery,
            message_id=message.message_id,
            group=message.group,
            redelivered=message.redelivered,
            parked=message.parked,
            undecodable=FAILURE if message.undecodable else None,
        )

    def arrive_directly(self, message: Stored) -> bool:
        direct = self.machine.begin_directly(self.next_delivery, message.message_id, message.group, self.now)
        if direct is None:
            return False
        self.direct = direct
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
        message_id = self.ids[asked.delivery].message_id
        self.attempts[message_id] = self.attempts.get(message_id, 0) + 1
        self.send(e.AttemptRecorded(delivery=asked.delivery, attempt=self.attempts[message_id]))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), how=st.sampled_from(["return", "return", "return", "raise", "fatal"]))
    def handled(self, data: st.DataObject, how: str) -> None:
        self.end_call(data.draw(st.sampled_from(sorted(self.calls))), how)

    def end_call(self, call: int, how: str) -> None:
        unit, _ = self.calls.pop(call)
        if how == "return" and self.direct is not None and self.machine.returned_directly(self.direct):
            assert self.direct.call == call
            self.carry_out(d.CommitUnit(unit=unit, acknowledge=(self.direct.delivery,)))
            return
        if how == "return":
            self.send(e.HandlerReturned(call=call))
            return
        if unit in self.units:
            self.units[unit].bad = True
            self.units[unit].unacknowledged.discard(call)
        self.held.pop(call, None)
        self.send(e.HandlerRaised(call=call, failure=FATAL if how == "fatal" else FAILURE))

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
        if number in self.dead:
            self.dead.discard(number)
            self.send(e.UnitInDoubt(unit=number) if how == "after" else e.UnitLost(unit=number))
        elif how == "commit":
            self.apply(decision)
            if (
                self.direct is None
                or self.direct.unit != number
                or not self.machine.committed_directly(self.direct)
            ):
                self.send(e.UnitCommitted(unit=number))
        elif how == "fail":
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
        self.send(e.StopAsked(reason="enough"))

    @precondition(lambda self: not self.running)
    @rule()
    def start_again(self) -> None:
        assert not self.outstanding
        self.running = True
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
        if self.connected:
            self.cut()  # what was kept unsettled comes again
        for _ in range(2000):
            if not self.advance():
                break
        left = [message for message in self.stored if not message.undecodable]
        assert not left, "every message is settled in the end"
        kept = [message.message_id for message in self.stored]
        assert sorted(self.gone + kept) == sorted(f"ID:{number + 1}" for number in range(self.published))
        assert self.machine.idle

    def advance(self) -> bool:
        if not self.running:
            self.start_again()
        elif self.connecting:
            self.connect(works=True)
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
