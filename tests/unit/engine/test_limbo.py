"""Sending what is due in limbo: over brokers that take all, refuse some, or are away. P12-P18."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine import limbo
from airflow_provider_jmsjca.engine.limbo import LimboSender, StoreUpkeep
from airflow_provider_jmsjca.engine.send_markers import SEND_MARKERS, apply_markers, send_marker
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.errors import (
    ConnectionLostError,
    InDoubtError,
    PermanentBrokerError,
    PoisonMessageError,
    TransientStoreError,
)
from airflow_provider_jmsjca.store.base import LIMBO_TRIES, LimboEntry, LimboSelection, LimboState
from airflow_provider_jmsjca.transports.base import (
    Capabilities,
    ConnectionState,
    Consumer,
    OnReceived,
    Outgoing,
    Received,
    Subscription,
    UnitOfWork,
)
from airflow_provider_jmsjca.transports.memory import MemoryBroker as Broker
from tests.memory_store import MemoryLimbo, MemoryStore
from tests.unit.engine.brokers import LesserConnection

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


class World:
    """A limbo, a broker, and a clock that is set."""

    def __init__(self, name: str) -> None:
        self.server = Broker(name)
        self.limbo = MemoryLimbo()
        self.now = NOON
        self.open = lambda: LesserConnection(self.server)
        self.down: set[str] = set()
        self.connected: list[str] = []
        self.sender = LimboSender(self.limbo, self.connect, clock=lambda: self.now)

    def connect(self, name: str) -> AbstractContextManager[JmsConnection]:
        if name in self.down:
            raise ConnectionLostError("nobody answers")
        self.connected.append(name)
        return JmsConnection(self.open())

    def put(
        self, *bodies: str, due: int = 0, conn_id: str = "a", destination: str = "queue://orders"
    ) -> list[int]:
        due_at = self.now + timedelta(seconds=due)
        return self.limbo.put(
            [
                LimboEntry(
                    jms_conn_id=conn_id,
                    destination=destination,
                    message=JmsMessage.text(body),
                    due_at=due_at,
                )
                for body in bodies
            ],
            self.now,
        )

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def bodies(self) -> list[object]:
        return [each.body for each in self.server.messages("orders")]


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    return World(request.node.name)


def test_messages_are_sent_when_they_are_due_and_not_before_p18(world: World) -> None:
    """P18: never sooner than the delivery date."""
    world.put("now", "now too")
    world.put("later", due=5)
    assert world.sender.send_due().sent == 2
    world.later(4.9)
    assert world.sender.send_due().sent == 0
    world.later(0.1)
    assert world.sender.send_due().sent == 1
    assert world.bodies() == ["now", "now too", "later"]
    assert world.limbo.page() == []


def test_two_senders_share_the_work_and_send_nothing_twice(world: World) -> None:
    world.put(*map(str, range(1_200)))
    other = LimboSender(world.limbo, world.connect, clock=lambda: world.now)
    assert world.sender.send_due().sent + other.send_due().sent == 1_200
    assert sorted(map(int, map(str, world.bodies()))) == list(range(1_200))


def test_a_connection_is_opened_once_for_all_that_is_due_and_let_go_then(world: World) -> None:
    world.put(*map(str, range(350)))
    world.put(*map(str, range(350)), conn_id="b")
    opened: list[LesserConnection] = []

    def connection() -> LesserConnection:
        opened.append(LesserConnection(world.server))
        return opened[-1]

    world.open = connection
    assert world.sender.send_due().sent == 700
    assert sorted(world.connected) == ["a", "b"]
    assert [each.state for each in opened] == [ConnectionState.CLOSED] * 2
    world.put("more")
    assert world.sender.send_due().sent == 1
    assert len(world.connected) == 3


def test_after_a_refusal_the_next_messages_go_over_a_new_connection(world: World) -> None:
    alone = replace(LesserConnection(world.server).capabilities, deduplicating_send=False)
    world.open = lambda: Choosy(world.server, alone, atomic=False)
    world.put(*map(str, range(99)), "bad", *map(str, range(100, 150)))  # it is the last of its hundred
    assert world.sender.send_due().sent == 149
    assert world.connected == ["a", "a"]


class Choosy(LesserConnection):
    """Refuses messages with the body "bad"; confirms each message by itself, or all of a unit."""

    def __init__(self, server: Broker, capabilities: Capabilities | None = None, *, atomic: bool) -> None:
        super().__init__(server, capabilities)
        self._capabilities = replace(self._capabilities, atomic_commit=atomic)

    def send(self, outgoing: Iterable[Outgoing]) -> int:
        return sum(super(Choosy, self).send([checked(each)]) for each in outgoing)

    def unit(self) -> UnitOfWork:
        return cast("UnitOfWork", ChoosyUnit(super().unit()))


class ChoosyUnit:
    def __init__(self, inner: UnitOfWork) -> None:
        self._inner = inner

    def send(self, outgoing: Outgoing) -> None:
        self._inner.send(checked(outgoing))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def checked(outgoing: Outgoing) -> Outgoing:
    if outgoing.message.body == "bad":
        raise PermanentBrokerError("too bad")
    return outgoing


@pytest.mark.parametrize("atomic", [True, False])
def test_a_refused_message_fails_by_itself_and_stays_p16(world: World, *, atomic: bool) -> None:
    """P16: it is tried so often, and then stays; the others are sent once."""
    world.open = lambda: Choosy(world.server, atomic=atomic)
    bad = world.put("1", "bad", "2", "3")[1]
    for number in range(LIMBO_TRIES):
        done = world.sender.send_due()
        assert done.failed == (number == LIMBO_TRIES - 1)
        assert world.bodies() == ["1", "2", "3"]
        world.later(1)
    (kept,) = world.limbo.page(LimboSelection(state=LimboState.FAILED))
    assert (kept.number, kept.tries, kept.exception_message) == (bad, LIMBO_TRIES, "too bad")
    world.open = lambda: LesserConnection(world.server)
    world.limbo.revive(LimboSelection(numbers=frozenset({bad})), world.now)
    assert world.sender.send_due().sent == 1


def test_an_outage_holds_up_its_own_messages_alone(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.put("a1", "a2")
    world.put("b1", conn_id="b")
    world.down = {"a"}
    assert world.sender.send_due().sent == 1
    assert "wait for the connection 'a'; next attempt in 1 s" in caplog.text
    world.down = set()
    assert world.sender.send_due().sent == 0
    world.later(1)
    assert world.sender.send_due().sent == 2
    assert world.bodies() == ["b1", "a1", "a2"]
    assert world.limbo.page() == []


def test_what_cant_be_read_fails_for_good_and_holds_up_nobody(world: World) -> None:
    (strange,) = world.put("x", destination="queue://")
    world.put("good")
    done = world.sender.send_due()
    assert (done.sent, done.failed) == (1, 1)
    assert [each.number for each in world.limbo.page()] == [strange]


def test_what_the_store_could_not_be_told_is_noted_later_and_not_sent_again(world: World) -> None:
    world.put("1", "2")
    limbo = Forgetful()
    limbo.__dict__.update(world.limbo.__dict__)
    sender = LimboSender(limbo, world.connect, clock=lambda: world.now)
    with pytest.raises(TransientStoreError):
        sender.send_due()
    world.later(61)  # the lease is over
    assert sender.send_due().sent == 2
    assert world.bodies() == ["1", "2"]
    assert limbo.page() == []


class Forgetful(MemoryLimbo):
    """Can't be told the first time."""

    told = False

    def sent(self, owner: str, numbers: Collection[int]) -> int:
        if not self.told:
            self.told = True
            raise TransientStoreError("locked")
        return super().sent(owner, numbers)


def test_a_killed_sender_leaves_its_messages_until_its_lease_is_over(world: World) -> None:
    world.put("1")
    world.limbo.lease(world.now, owner="killed", until=world.now + timedelta(seconds=60), limit=10)
    assert world.sender.send_due().sent == 0
    world.later(60)
    assert world.sender.send_due().sent == 1


def test_whoever_runs_drops_what_is_too_old_now_and_then(world: World) -> None:
    store = MemoryStore()
    upkeep = StoreUpkeep(store, world.connect, clock=lambda: world.now)

    def known() -> tuple[int, int]:
        return len(store.attempts.page()), len(store.handled.known("orders", ["old", "new"]))

    for message, age in (("old", 8), ("new", 6)):
        store.attempts.begin("orders", [message], world.now - timedelta(days=age))
        store.handled.add("orders", [message], world.now - timedelta(days=age))
    assert known() == (2, 2)
    upkeep.round()
    assert known() == (1, 1)
    world.later(599)
    store.attempts.begin("orders", ["old"], world.now - timedelta(days=8))
    upkeep.round()
    assert known() == (2, 1)
    world.later(1)
    upkeep.round()
    assert known() == (1, 1)


def test_the_upkeep_goes_on_whatever_happens_and_ends_with_the_block(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store can't be opened at first, and its second round fails for a reason that nobody foresaw."""
    monkeypatch.setattr(limbo, "EVERY", timedelta(milliseconds=1))
    rounds: list[str] = []
    done = threading.Event()

    class Failing(MemoryStore):
        def close(self) -> None:
            rounds.append("closed")

    def open_store() -> MemoryStore:
        rounds.append("opened")
        if len(rounds) < 4:
            raise TransientStoreError("the database is away")
        return Failing()

    def one(_: StoreUpkeep) -> limbo.SendResult:
        rounds.append("round")
        if rounds.count("round") == 2:
            raise ZeroDivisionError
        if rounds.count("round") == 4:
            done.set()
        return limbo.SendResult()

    monkeypatch.setattr(StoreUpkeep, "round", one)
    with limbo.maintained(lambda: contextlib.closing(open_store()), world.connect):
        assert done.wait(10)
    assert [each for each in rounds if each != "round"] == ["opened"] * 4 + ["closed"]
    levels = [record.levelname for record in caplog.records if record.name == limbo.__name__]
    assert levels == ["ERROR", "ERROR"], "a fault that lasts is said once"
    assert "the database is away" in caplog.text


# -- send markers --------------------------------------------------------------------------------------


class WitnessingConnection(LesserConnection):
    """To a broker that has transactions and selectors, and drops no repeated message.

    Args:
        server: The broker.
        refuses: Nobody may write there: "send"; or read: "consume".
        outcome: What becomes of commits before the connection is lost in them; `None`: it isn't lost.
    """

    def __init__(self, server: Broker, *, refuses: str = "", outcome: str | None = None) -> None:
        super().__init__(server)
        self._capabilities = replace(self._capabilities, deduplicating_send=False)
        self._refuses = refuses
        self._outcome = outcome

    def consume(self, subscription: Subscription, on_received: OnReceived) -> Consumer:
        if self._refuses == "consume" and subscription.destination == SEND_MARKERS:
            raise PermanentBrokerError("nobody may read there")
        return super().consume(subscription, on_received)

    def unit(self) -> UnitOfWork:
        return cast("UnitOfWork", WitnessingUnit(super().unit(), self._refuses, self._outcome))


class WitnessingUnit:
    def __init__(self, inner: UnitOfWork, refuses: str, outcome: str | None) -> None:
        self._inner = inner
        self._refuses = refuses
        self._outcome = outcome

    def send(self, outgoing: Outgoing) -> None:
        if self._refuses == "send" and outgoing.destination == SEND_MARKERS:
            raise PermanentBrokerError("nobody may write there")
        self._inner.send(checked(outgoing))

    def commit(self, meanwhile: Callable[[], object] | None = None) -> None:
        if self._outcome is None:
            self._inner.commit(meanwhile)
            return
        if self._outcome == "committed":
            self._inner.commit(meanwhile)
        else:
            self._inner.rollback()
        raise InDoubtError("nobody knows")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def send_markers(world: World) -> int:
    return world.server.depth(SEND_MARKERS.name)


class Killed(BaseException):
    """The end of a process: nothing catches it."""


class Dying(MemoryLimbo):
    """Whoever tells it what was sent is killed before."""

    def sent(self, owner: str, numbers: Collection[int]) -> int:
        raise Killed(owner, numbers)


def test_what_a_killed_sender_has_sent_is_known_by_its_witness(world: World) -> None:
    world.open = lambda: WitnessingConnection(world.server)
    world.put("1", "2")
    world.put("3", conn_id="b")
    world.put("later", due=30)
    dying = Dying()
    dying.__dict__.update(world.limbo.__dict__)
    with pytest.raises(Killed):
        LimboSender(dying, world.connect, clock=lambda: world.now).send_due()
    assert (world.bodies(), send_markers(world)) == (["1", "2"], 1)
    world.later(59)
    assert world.sender.send_due().sent == 1
    world.later(1)
    assert world.sender.send_due().sent == 3
    assert world.bodies() == ["1", "2", "later", "3"]
    assert (world.limbo.page(), send_markers(world)) == ([], 0)


@pytest.mark.parametrize("outcome", ["committed", "rolled back"])
def test_what_a_lost_connection_leaves_in_doubt_is_sent_once(world: World, outcome: str) -> None:
    world.open = lambda: WitnessingConnection(world.server, outcome=outcome)
    world.put("1", "2")
    assert world.sender.send_due().sent == 0
    world.open = lambda: WitnessingConnection(world.server)
    world.put("3")
    world.later(1)
    assert world.sender.send_due().sent == 1
    world.later(58)
    assert world.sender.send_due().sent == 0
    world.later(1)
    assert world.sender.send_due().sent == 2
    assert sorted(map(str, world.bodies())) == ["1", "2", "3"]
    assert (world.limbo.page(), send_markers(world)) == ([], 0)


@pytest.mark.parametrize("refuses", ["send", "consume"])
def test_where_witnesses_are_refused_messages_are_sent_without(
    world: World, caplog: pytest.LogCaptureFixture, refuses: str
) -> None:
    world.open = lambda: WitnessingConnection(world.server, refuses=refuses)
    world.put(*map(str, range(250)))
    assert world.sender.send_due().sent == 250
    assert sorted(map(int, map(str, world.bodies()))) == list(range(250))
    world.put("more")
    assert world.sender.send_due().sent == 1
    (said,) = [record.getMessage() for record in caplog.records if "jmsjca.limbo" in record.getMessage()]
    assert said == (
        "The user of connection 'a' has no access to queue://jmsjca.limbo.send_markers, so a crash may send "
        "messages of limbo twice. Grant it read and write access: nobody may "
        f"{'write' if refuses == 'send' else 'read'} there"
    )


def test_beside_witnesses_a_refused_message_fails_by_itself_p16(world: World) -> None:
    world.open = lambda: WitnessingConnection(world.server)
    bad = world.put("1", "bad", "2", "3")[1]
    for _ in range(LIMBO_TRIES):
        world.sender.send_due()
        world.later(1)
    (kept,) = world.limbo.page(LimboSelection(state=LimboState.FAILED))
    assert (kept.number, kept.tries, kept.exception_message) == (bad, LIMBO_TRIES, "too bad")
    assert (world.bodies(), send_markers(world)) == (["1", "2", "3"], 0)


def test_witnesses_are_taken_meanwhile_and_old_ones_of_the_dead_are_dropped(world: World) -> None:
    most = 0

    def connection() -> LesserConnection:
        return WitnessingConnection(world.server)

    class Watching(MemoryLimbo):
        def sent(self, owner: str, numbers: Collection[int]) -> int:
            nonlocal most
            most = max(most, send_markers(world))
            return super().sent(owner, numbers)

    world.open = connection
    watching = Watching()
    watching.__dict__.update(world.limbo.__dict__)
    with JmsConnection(connection()) as dead, dead.session() as session:
        session.send_all([send_marker("dead", [1])])
    world.now = datetime.now(UTC)
    world.put(*map(str, range(6_000)))
    sender = LimboSender(watching, world.connect, clock=lambda: world.now)
    assert sender.send_due().sent == 6_000
    assert most <= 1 + 50 + 1
    assert send_markers(world) == 1, "the dead one's, which somebody may ask for"
    world.later(8 * 24 * 3600)
    world.put("more")
    assert LimboSender(watching, world.connect, clock=lambda: world.now).send_due().sent == 1
    assert send_markers(world) == 0


class SpoilingConnection(WitnessingConnection):
    """Messages with the property `bad` can't be decoded."""

    def consume(self, subscription: Subscription, on_received: OnReceived) -> Consumer:
        def fail() -> JmsMessage:
            raise PoisonMessageError("byte 0 is not UTF-8")

        def spoiled(received: Received) -> None:
            if "bad" in received.message.properties:
                received = Received(received.consumer, received.token, received.generation, fail)
            on_received(received)

        return super().consume(subscription, spoiled)


def test_rubbish_among_the_witnesses_stops_nobody(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever may write there may send what can't be decoded, with any time."""
    world.open = lambda: SpoilingConnection(world.server)
    with JmsConnection(world.open()) as hostile, hostile.session() as session:
        for bad in range(3):
            session.send(SEND_MARKERS, JmsMessage.text("x", {"bad": bad}))
    world.now = datetime.now(UTC) + timedelta(days=8)
    world.put("1")
    assert world.sender.send_due().sent == 1
    assert (world.bodies(), send_markers(world), caplog.records) == (["1"], 0, [])


@pytest.mark.parametrize("rubbish", ["no JSON", "[" * 100_000, "7", '["one"]', "[true]", None])
def test_rubbish_in_the_name_of_a_sender_is_no_witness(world: World, rubbish: str | None) -> None:
    """It is left out; what the others say counts."""
    noted: list[int] = []
    with JmsConnection(SpoilingConnection(world.server)) as connection:
        with connection.session() as session:
            session.send_all([send_marker("me", [1])])
            bad = {"owner": "me"} | ({"bad": True} if rubbish is None else {})
            session.send(SEND_MARKERS, JmsMessage.text(rubbish or "x", bad))
            session.send_all([send_marker("me", [2])])
        apply_markers(connection, "me", noted.extend)
    assert (noted, send_markers(world)) == ([1, 2], 0)
