from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.redelivery import MoveTarget
from airflow_provider_jmsjca.engine.collecting.claim import Choice, ClaimResult, ClaimSpec, claim, finish
from airflow_provider_jmsjca.errors import BatchInUseError, ConnectionLostError, InDoubtError, SpoolError
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.rows import Row, manifest_messages
from airflow_provider_jmsjca.spool.spool import SpoolBatch
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, Outgoing, Subscription
from airflow_provider_jmsjca.transports.memory import MemoryBroker as Broker
from airflow_provider_jmsjca.transports.memory import MemoryTransport
from airflow_provider_jmsjca.transports.memory import memory_broker as broker
from airflow_provider_jmsjca.transports.memory.connection import CAPABILITIES
from airflow_provider_jmsjca.transports.memory.message_queue import QueuedMessage
from tests.dead_letters import original_of
from tests.unit.engine.brokers import LesserConnection
from tests.unit.engine.collecting.test_batcher import Spoiling
from tests.unit.engine.listening import refusing_at_commit

ORDERS = Destination.queue("orders")
DEAD = Destination.queue("orders.dead")
SETTINGS = ConnectionSettings(scheme="vm", hosts=(("claim", None),))
SOON = timedelta(milliseconds=150)


@pytest.fixture
def orders() -> Iterator[Broker]:
    server = broker("claim")
    yield server
    server.restart()
    server.clear()


@pytest.fixture
def connection(orders: Broker) -> Iterator[Connection]:
    made = MemoryTransport().connect(SETTINGS)
    yield made
    if orders.connections:
        made.close()


def send(*bodies: str) -> None:
    connection = MemoryTransport().connect(SETTINGS)
    connection.send(Outgoing(destination=ORDERS, message=JmsMessage.text(body)) for body in bodies)
    connection.close()


def opener(spool: Path, batch_id: str = "run") -> Callable[[], SpoolBatch]:
    return lambda: SpoolBatch(spool, batch_id, source=str(ORDERS), activation="a")


def spec(
    most: int = 1,
    wants: Callable[[str], Choice] | None = None,
    *,
    dead_letter: tuple[MoveTarget, ...] = (),
) -> ClaimSpec:
    return ClaimSpec(
        subscription=Subscription(destination=ORDERS),
        max_messages=most,
        first_within=SOON,
        wait_for_more=SOON,
        choose=None if wants is None else lambda message: wants(str(message.body)),
        filters_messages=wants is not None,
        dead_letter=dead_letter,
    )


def bodies(manifest: Manifest | None) -> list[object]:
    assert manifest is not None
    return [stored.message.body for stored in manifest_messages(manifest)]


def on_queue(server: Broker) -> list[object]:
    return [message.body for message in server.messages("orders")]


def crashing(spool: Path, when: str) -> Callable[[], SpoolBatch]:
    """A batch whose writer dies right before or after it has sealed its segment."""

    class Crash(SpoolBatch):
        def seal(self, rows: list[Row]) -> object:  # type: ignore[override]  # it never returns
            if when == "after":
                super().seal(rows)
            raise KeyboardInterrupt

    return lambda: Crash(spool, "run", source=str(ORDERS), activation="a")


def test_the_first_message_is_claimed_and_the_others_stay(
    orders: Broker, connection: Connection, tmp_path: Path
) -> None:
    send("a", "b", "c")
    result = claim(connection, opener(tmp_path), spec())
    assert bodies(result.manifest) == ["a"]
    assert on_queue(orders) == ["b", "c"]


def test_a_batch_is_what_comes_in_time(orders: Broker, connection: Connection, tmp_path: Path) -> None:
    send("a", "b", "c")
    assert bodies(claim(connection, opener(tmp_path), spec(10)).manifest) == ["a", "b", "c"]
    assert orders.depth("orders") == 0


@pytest.mark.usefixtures("orders")
def test_an_empty_queue_leaves_nothing_on_disk(connection: Connection, tmp_path: Path) -> None:
    assert claim(connection, opener(tmp_path), spec()) == ClaimResult(manifest=None)
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused_stays(orders: Broker, connection: Connection, tmp_path: Path) -> None:
    send("a", "b", "c", "b")
    wanted = {"b": Choice.CLAIM}
    result = claim(connection, opener(tmp_path), spec(9, lambda body: wanted.get(body, Choice.LEAVE)))
    assert (bodies(result.manifest), result.left) == (["b", "b"], 2)
    assert on_queue(orders) == ["a", "c"]


def test_what_is_claimed_alone_leaves_those_before_it(
    orders: Broker, connection: Connection, tmp_path: Path
) -> None:
    send("a", "bad", "c")
    alone = {"bad": Choice.CLAIM_ALONE}
    result = claim(connection, opener(tmp_path), spec(9, lambda body: alone.get(body, Choice.CLAIM)))
    assert bodies(result.manifest) == ["bad"]
    assert on_queue(orders) == ["a", "c"]


def test_a_choice_that_raises_claims_nothing(orders: Broker, connection: Connection, tmp_path: Path) -> None:
    send("a", "b")

    def wants(body: str) -> Choice:
        if body == "b":
            raise ZeroDivisionError
        return Choice.CLAIM

    with pytest.raises(ZeroDivisionError):
        claim(connection, opener(tmp_path), spec(9, wants))
    assert on_queue(orders) == ["a", "b"]


@pytest.mark.parametrize(("when", "claimed"), [("before", ["b"]), ("after", ["a"])])
def test_a_crash_around_the_seal_loses_nothing_and_doubles_nothing(
    orders: Broker, connection: Connection, tmp_path: Path, when: str, claimed: list[str]
) -> None:
    """What was sealed is this holder's, and is settled; what wasn't is anybody's."""
    send("a", "b")
    with pytest.raises(KeyboardInterrupt):
        claim(connection, crashing(tmp_path, when), spec())
    assert orders.depth("orders") == 2
    # The one that comes first now is another.
    if when == "before":
        taken = claim(connection, opener(tmp_path, "other"), spec())
        assert bodies(taken.manifest) == ["a"]
    with opener(tmp_path)() as batch:
        if batch.rows:
            result = finish(connection, batch, spec())
            assert result.repeated == 1
            manifest = batch.manifest
    if when == "before":
        manifest = claim(connection, opener(tmp_path), spec()).manifest
    assert bodies(manifest) == claimed
    assert orders.depth("orders") == 1 - (when == "before")


def test_what_another_holder_sealed_is_dropped_and_the_next_is_claimed(
    orders: Broker, connection: Connection, tmp_path: Path
) -> None:
    """The first holder was killed before its acknowledgement, and nobody tries it again."""
    send("a", "b")
    with pytest.raises(KeyboardInterrupt):
        claim(connection, crashing(tmp_path, "after"), spec())
    result = claim(connection, opener(tmp_path, "next"), spec())
    assert (bodies(result.manifest), result.repeated) == (["b"], 1)
    assert orders.depth("orders") == 0


def test_equal_messages_of_a_producer_that_makes_the_ids_are_claimed_one_by_one(
    orders: Broker, tmp_path: Path
) -> None:
    """All are flagged; of what an attempt sealed and did not acknowledge one is settled, and no more."""
    equal = replace(JmsMessage.text("paid"), message_id="order-7", destination=ORDERS)
    for number in range(4):
        entry = QueuedMessage(equal, number)
        entry.deliveries = 1
        with orders.lock:
            orders.queue(ORDERS.name).add(entry)
    with contextlib.closing(
        LesserConnection(orders, replace(CAPABILITIES, stable_message_id=False))
    ) as lesser:
        assert claim(lesser, opener(tmp_path, "first"), spec()).repeated == 0
        assert claim(lesser, opener(tmp_path, "second"), spec()).repeated == 0
        with pytest.raises(KeyboardInterrupt):
            claim(lesser, crashing(tmp_path, "after"), spec())
        with opener(tmp_path)() as batch:
            assert finish(lesser, batch, spec(9)).repeated == 1
        assert orders.depth("orders") == 1
        assert bodies(claim(lesser, opener(tmp_path, "last"), spec()).manifest) == ["paid"]


def test_only_repetitions_leave_no_batch(orders: Broker, connection: Connection, tmp_path: Path) -> None:
    send("a")
    with pytest.raises(KeyboardInterrupt):
        claim(connection, crashing(tmp_path, "after"), spec())
    result = claim(connection, opener(tmp_path, "next"), spec())
    assert (result.manifest, result.repeated, orders.depth("orders")) == (None, 1, 0)
    assert [folder.name for folder in tmp_path.glob("[!.]*")] == ["run"]


def test_a_batch_that_another_attempt_finished_is_returned(
    orders: Broker, connection: Connection, tmp_path: Path
) -> None:
    send("a", "b")
    claim(connection, opener(tmp_path), spec())
    assert bodies(claim(connection, opener(tmp_path), spec()).manifest) == ["a"]
    assert on_queue(orders) == ["b"]


def test_while_another_attempt_holds_the_batch_nothing_is_taken(
    orders: Broker, connection: Connection, tmp_path: Path
) -> None:
    send("a")
    with opener(tmp_path)(), pytest.raises(BatchInUseError):
        claim(connection, opener(tmp_path), spec())
    assert on_queue(orders) == ["a"]


def test_nothing_is_acknowledged_when_sealing_fails(
    orders: Broker, connection: Connection, tmp_path: Path
) -> None:
    send("a")

    class Full(SpoolBatch):
        def seal(self, _: list[Row]) -> object:  # type: ignore[override]  # the same, but refusing
            raise SpoolError("No space left on device")

    with pytest.raises(SpoolError, match="No space left"):
        claim(connection, lambda: Full(tmp_path, "run", source=str(ORDERS), activation="a"), spec())
    assert on_queue(orders) == ["a"]


def test_a_connection_lost_after_the_seal_leaves_the_messages_in_the_batch(
    orders: Broker, connection: Connection, tmp_path: Path
) -> None:
    send("a")

    class Losing(SpoolBatch):
        def seal(self, rows: list[Row]) -> object:  # type: ignore[override]  # the same
            segment = super().seal(rows)
            orders.kill()
            return segment

    with pytest.raises(ConnectionLostError):
        claim(connection, lambda: Losing(tmp_path, "run", source=str(ORDERS), activation="a"), spec())
    orders.restart()
    with opener(tmp_path)() as batch:
        again = MemoryTransport().connect(SETTINGS)
        assert (batch.rows, finish(again, batch, spec()).repeated) == (1, 1)
        again.close()
    assert orders.depth("orders") == 0


def spoiled(connection: Connection, *, salvage: bool = True) -> Connection:
    return Spoiling(connection, salvage=salvage)  # type: ignore[return-value]  # a connection


@pytest.mark.parametrize("salvage", [True, False])
def test_what_cannot_be_decoded_is_looked_past(
    orders: Broker, connection: Connection, tmp_path: Path, *, salvage: bool
) -> None:
    """Without a dead-letter destination it stays, be it more than a look asks for at first."""
    send(*["0"] * 25, "1")
    result = claim(spoiled(connection, salvage=salvage), opener(tmp_path), spec())
    assert (bodies(result.manifest), result.left) == (["1"], 25)
    assert on_queue(orders) == ["0"] * 25


def test_what_cannot_be_decoded_is_a_dead_letter(
    orders: Broker, connection: Connection, tmp_path: Path
) -> None:
    send("3", "1")
    result = claim(spoiled(connection), opener(tmp_path), spec(dead_letter=(MoveTarget.of(DEAD),)))
    assert (bodies(result.manifest), result.dead_letters) == (["1"], 1)
    assert orders.depth("orders") == 0
    (message,) = orders.messages("orders.dead")
    letter = original_of(message)
    assert letter is not None
    assert letter.message.body == b"\xff3"
    assert letter.message.destination == ORDERS
    assert letter.state.failure is not None
    assert letter.state.failure.class_name.endswith("PoisonMessageError")


def test_a_dead_letter_that_is_refused_stays_where_it_was(
    orders: Broker, connection: Connection, tmp_path: Path
) -> None:
    send("3", "1")
    orders.forbid(DEAD)
    result = claim(spoiled(connection), opener(tmp_path), spec(dead_letter=(MoveTarget.of(DEAD),)))
    assert (bodies(result.manifest), result.left) == (["1"], 1)
    assert on_queue(orders) == ["3"]
    orders.permit(DEAD)


def test_the_password_in_use_is_in_no_dead_letter_of_a_claim(orders: Broker, tmp_path: Path) -> None:
    """Bare, as an error may repeat it: nothing around it says that it is one."""
    send("3")
    connection = MemoryTransport().connect(replace(SETTINGS, username="bob", password="byte 0 is"))
    claim(spoiled(connection), opener(tmp_path), spec(dead_letter=(MoveTarget.of(DEAD),)))
    connection.close()
    (message,) = orders.messages("orders.dead")
    assert "byte 0 is" not in str(message.properties)
    assert "***" in str(message.properties["JMS_Sun_JMSJCA_ExceptionMessage"])


def test_a_dead_letter_over_which_the_broker_hangs_up_goes_with_a_part(
    orders: Broker, tmp_path: Path
) -> None:
    """The next looks send less and less of it; those behind it are claimed."""
    sender = MemoryTransport().connect(SETTINGS)
    sender.send([Outgoing(destination=ORDERS, message=JmsMessage.text("3", {"huge": "x" * 9_500}))])
    sender.close()
    send("1")
    looks = 0
    while True:
        looks += 1
        connection = refusing_at_commit(orders, SETTINGS, 9_200, closing=True)
        with contextlib.closing(connection), contextlib.suppress(InDoubtError):
            result = claim(spoiled(connection), opener(tmp_path), spec(dead_letter=(MoveTarget.of(DEAD),)))
            break
        assert looks < 5
    assert (looks, bodies(result.manifest), result.dead_letters) == (3, ["1"], 1)
    (message,) = orders.messages("orders.dead")
    assert message.properties["JMS_Sun_JMSJCA_LeftOut"] == "shortened: 'huge'"


@pytest.mark.parametrize("closing", [False, True], ids=["said", "closed"])
def test_a_dead_letter_that_no_way_helps_stays(orders: Broker, tmp_path: Path, *, closing: bool) -> None:
    """And those behind it are claimed."""
    send("3", "1")
    looks = 0
    while True:
        looks += 1
        connection = refusing_at_commit(orders, SETTINGS, 0, closing=closing)
        with contextlib.closing(connection), contextlib.suppress(InDoubtError):
            result = claim(spoiled(connection), opener(tmp_path), spec(dead_letter=(MoveTarget.of(DEAD),)))
            break
        assert looks < 9
    assert (looks, bodies(result.manifest), result.left) == (6 if closing else 1, ["1"], 1)
    assert on_queue(orders) == ["3"]


def test_looking_past_too_many_is_said(
    orders: Broker,
    connection: Connection,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("airflow_provider_jmsjca.engine.collecting.claim.LOOKED_PAST", 3)
    send("a", "a", "a", "a", "b")
    wanted = replace(spec(), choose=lambda _: Choice.LEAVE, filters_messages=True)
    assert claim(connection, opener(tmp_path), wanted).left == 4
    assert "4 messages that were not claimed are at the front of queue://orders" in caplog.text
    assert orders.depth("orders") == 5
