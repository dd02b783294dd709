"""What one acknowledgement may stand for, whatever is settled in whichever order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import Consumer, Received
from airflow_provider_jmsjca.transports.stomp.consumer import UnsettledMessages
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame

_MOST = 4
_UNITS = st.sampled_from([b"transaction:a\n", b"transaction:b\n"])
_CHOICE = st.integers(min_value=0, max_value=_MOST - 1)


class Accumulating(RuleBasedStateMachine):
    """A broker that takes an acknowledgement for everything up to a message, and a consumer that settles."""

    def __init__(self) -> None:
        super().__init__()
        self.consumer = _Consumer()
        self.unsettled = UnsettledMessages(self.consumer)
        self.received: list[Received] = []
        self.at_broker: list[Received] = []
        self.free: list[Received] = []
        self.acknowledged: list[Received] = []
        self.units: dict[bytes, list[Received]] = {}

    @precondition(lambda self: len(self.at_broker) < _MOST)
    @rule()
    def comes(self) -> None:
        token = b"%d" % len(self.received)
        one = _received(self.consumer, token, self.consumer.generation)
        self.unsettled.frames[token] = Frame(b"MESSAGE", b"", b"")
        for those in (self.received, self.at_broker, self.free):
            those.append(one)

    @precondition(lambda self: self.at_broker)
    @rule(choice=_CHOICE)
    def acknowledges(self, choice: int) -> None:
        one = self.at_broker[choice % len(self.at_broker)]
        if one in self.free:
            self.free.remove(one)
            self.acknowledged.append(one)
        tokens, count = self.unsettled.take([one], in_order=True)
        self.broker_hears((tokens[0] if tokens else None, count), self.acknowledged)

    @precondition(lambda self: self.at_broker)
    @rule(choice=_CHOICE, unit=_UNITS)
    def reserves(self, choice: int, unit: bytes) -> None:
        one = self.at_broker[choice % len(self.at_broker)]
        if any(one in reserved for reserved in self.units.values()):
            with pytest.raises(ConfigurationError):
                self.unsettled.reserve(one, unit)
            return
        assert self.unsettled.reserve(one, unit) == (one in self.free)
        if one in self.free:
            self.free.remove(one)
            self.units.setdefault(unit, []).append(one)

    @invariant()
    def what_is_settled_is_stale(self) -> None:
        assert self.unsettled.take(self.received[: -len(self.at_broker) or None], in_order=True) == ([], 0)

    @precondition(lambda self: self.units)
    @rule(unit=_UNITS)
    def commits(self, unit: bytes) -> None:
        reserved = self.units.pop(unit, [])
        last = max((self.received.index(one) for one in reserved), default=-1)
        others = [*self.free, *(one for each in self.units.values() for one in each)]
        if any(self.received.index(one) < last for one in others):
            with pytest.raises(ConfigurationError, match="must settle in order"):
                self.unsettled.last_reserved(unit)
            self.releases(reserved)
            return
        token = self.unsettled.last_reserved(unit)
        self.broker_hears((token, None), [*self.acknowledged, *reserved])
        assert not any(one in self.at_broker for one in reserved)
        self.unsettled.settle(reserved)
        self.broker_hears(self.unsettled.catch_up(), self.acknowledged)

    @precondition(lambda self: self.units)
    @rule(unit=_UNITS)
    def rolls_back(self, unit: bytes) -> None:
        self.releases(self.units.pop(unit, []))

    def releases(self, reserved: list[Received]) -> None:
        for one in reserved:
            self.unsettled.release(one)
        self.free.extend(reserved)

    def broker_hears(self, heard: tuple[bytes | None, int | None], allowed: list[Received]) -> None:
        token, count = heard
        if token is None:
            assert not count
            return
        position = next(at for at, one in enumerate(self.at_broker) if one.token == token) + 1
        assert count in {None, position}
        taken, self.at_broker = self.at_broker[:position], self.at_broker[position:]
        assert all(one in allowed for one in taken)

    @invariant()
    def nothing_waits_without_a_reason(self) -> None:
        assert not self.at_broker or self.at_broker[0] not in self.acknowledged

    @invariant()
    def it_holds_what_the_broker_waits_for(self) -> None:
        assert list(self.unsettled.frames) == [one.token for one in self.at_broker]

    def teardown(self) -> None:
        assert len(self.unsettled.forget()) == len(self.at_broker)
        self.consumer.generation += 1
        assert not any(self.unsettled.holds(one) for one in self.received)


class _Consumer:
    """Only its identity and its generation count."""

    generation = 0

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not for unsettled messages")


def _received(consumer: Consumer, token: bytes, generation: int) -> Received:
    return Received(consumer, token, generation, lambda: JmsMessage.text(""))


TestAccumulating = Accumulating.TestCase


def test_a_message_of_another_consumer_is_refused() -> None:
    received = _received(_Consumer(), b"0", 0)
    with pytest.raises(ConfigurationError, match="the consumer that received it"):
        UnsettledMessages(_Consumer()).holds(received)
