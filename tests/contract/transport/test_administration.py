"""Queue administration: the same operations on every broker, or a refusal that names the way out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_jmsjca import (
    CapabilityError,
    ConfigurationError,
    Connection,
    Destination,
    JmsMessage,
    MessageSelection,
    Outgoing,
    QueueAdministration,
    QueueOperation,
)
from tests.contract.transport.lab import Lab
from tests.contract.transport.traffic import Connect, drain
from tests.unit.engine.listening import until

BODIES = ("größe 0", "one", "two")


over_selecting_brokers = pytest.mark.parametrize("lab", ["memory", "activemq", "artemis"], indirect=True)
"""For operations on selected messages, which RabbitMQ refuses: see `test_refusals`."""


@pytest.fixture
def administration(connect: Connect, lab: Lab) -> Iterator[QueueAdministration]:
    administration = connect(management_url=lab.management_url).administration()
    yield administration
    administration.close()


@pytest.fixture
def filled(connection: Connection, queue: Destination) -> str:
    """The name of a queue with three messages, whose property `n` is their index."""
    connection.send(
        Outgoing(destination=queue, message=JmsMessage.text(body, {"n": str(index), "region": "eu"}))
        for index, body in enumerate(BODIES)
    )
    return queue.name


def bodies(found: Sequence[JmsMessage]) -> list[object]:
    return [each.body for each in found]


def test_browsing_leaves_the_messages(administration: QueueAdministration, filled: str) -> None:
    for _ in range(2):
        found = administration.browse(filled)
        assert bodies(found) == list(BODIES)
        assert [each.properties["n"] for each in found] == ["0", "1", "2"]
        assert all(each.properties["region"] == "eu" and each.timestamp for each in found)
        assert {str(each.destination) for each in found} == {f"queue://{filled}"}
    assert bodies(administration.browse(filled, skip=1, limit=1)) == ["one"]
    assert administration.browse(filled, skip=3) == []
    assert bodies(list(administration.browse_all(filled))) == list(BODIES)
    assert bodies(list(administration.browse_all(filled, most=2))) == list(BODIES[:2])


def test_an_unknown_queue_is_empty(administration: QueueAdministration, name: str) -> None:
    assert administration.statistics(name) is None
    assert list(administration.browse(name)) == []


def test_statistics(administration: QueueAdministration, filled: str) -> None:
    """J114."""

    def counted() -> bool:
        found = administration.statistics(filled)
        return found is not None and found.messages == len(BODIES)

    until(counted, within=30)
    listed = {each.name: each for each in administration.queues()}
    assert listed[filled].messages == len(BODIES)
    assert listed[filled].in_flight == 0
    assert not listed[filled].consumers


@pytest.mark.parametrize("lab", ["activemq", "rabbitmq"], indirect=True)
def test_an_empty_queue_is_listed(
    connection: Connection, administration: QueueAdministration, filled: str
) -> None:
    """Artemis and `vm://` forget a queue that a producer made once it is empty."""
    drain(connection, Destination.queue(filled))
    until(
        lambda: [each.messages for each in administration.queues() if each.name == filled] == [0], within=30
    )


@over_selecting_brokers
def test_moving_by_id_and_by_selector(administration: QueueAdministration, filled: str) -> None:
    target = f"{filled}.target"
    one = administration.browse(filled, selector="n = '1'")
    assert bodies(one) == ["one"]
    assert administration.move(filled, target, MessageSelection(ids=(str(one[0].message_id),))) == 1
    assert bodies(administration.browse(filled)) == ["größe 0", "two"]
    assert administration.move(filled, target, MessageSelection(selector="n = '2'")) == 1
    assert administration.move(filled, target, MessageSelection()) == 1
    assert sorted(map(str, bodies(administration.browse(target)))) == sorted(BODIES)
    assert {each.properties["region"] for each in administration.browse(target)} == {"eu"}
    assert list(administration.browse(filled)) == []


@over_selecting_brokers
def test_an_id_that_is_gone_moves_nothing(administration: QueueAdministration, filled: str) -> None:
    for gone in ("999999999999", "ID:gone' OR '1'='1"):
        assert administration.move(filled, f"{filled}.target", MessageSelection(ids=(gone,))) == 0
    assert bodies(administration.browse(filled)) == list(BODIES)


@over_selecting_brokers
def test_copying(administration: QueueAdministration, filled: str) -> None:
    target = f"{filled}.copy"
    assert administration.copy(filled, target, MessageSelection(selector="n <> '1'")) == 2
    assert bodies(administration.browse(target)) == ["größe 0", "two"]
    assert bodies(administration.browse(filled)) == list(BODIES)


@over_selecting_brokers
def test_deleting(administration: QueueAdministration, filled: str) -> None:
    one = administration.browse(filled, selector="n = '1'")
    assert administration.delete(filled, MessageSelection(ids=(str(one[0].message_id),))) == 1
    assert administration.delete(filled, MessageSelection(selector="n = '2'")) == 1
    assert bodies(administration.browse(filled)) == ["größe 0"]


def test_emptying_a_queue(administration: QueueAdministration, filled: str) -> None:
    administration.delete(filled, MessageSelection())
    assert list(administration.browse(filled)) == []


@over_selecting_brokers
def test_source_and_target_must_differ(administration: QueueAdministration, filled: str) -> None:
    for change in (administration.move, administration.copy):
        with pytest.raises(ConfigurationError, match="source and target"):
            change(filled, filled, MessageSelection())


def test_an_idle_broker_blocks_nobody(administration: QueueAdministration, lab: Lab) -> None:
    found = administration.resources()
    assert bool(found) == (lab.name in {"activemq", "artemis"})  # RabbitMQ reports alarms only
    assert not any(each.blocking for each in found)
    assert all(each.used_percent is None or 0 <= each.used_percent < 100 for each in found)


@pytest.mark.parametrize("lab", ["artemis"], indirect=True)
def test_an_address_that_blocks_producers_is_named(
    connection: Connection, administration: QueueAdministration, name: str
) -> None:
    queue = Destination.queue(f"full.{name}")
    connection.send([Outgoing(destination=queue, message=JmsMessage.text("x" * 20_000))])
    [full] = [each for each in administration.resources() if each.blocking]
    assert full.name == f"memory of address {queue.name}"
    assert full.figures.startswith("0 MiB of 0 MiB, address-full-policy BLOCK")
    assert "raise <max-size-bytes> in broker.xml" in full.remedy
    assert administration.delete(queue.name, MessageSelection()) == 1
    assert not any(each.blocking for each in administration.resources())


def test_the_time_is_that_of_the_brokers_clock(administration: QueueAdministration) -> None:
    before = datetime.now(UTC)
    # RabbitMQ cuts the fraction of the second, and renews the time of its answers once a second.
    assert before - timedelta(seconds=5) <= administration.time() <= datetime.now(UTC)


@pytest.mark.parametrize("lab", ["activemq"], indirect=True)
@pytest.mark.parametrize("pattern", ["{},other", "{}.>", "*.{}", "{}?consumer.exclusive=true"])
def test_one_name_never_changes_several_queues(
    administration: QueueAdministration, filled: str, pattern: str
) -> None:
    """Deleting from `orders.>` would empty each of these queues."""
    several = pattern.format(filled)
    for refused in (
        lambda: administration.delete(several, MessageSelection()),
        lambda: administration.move(filled, several, MessageSelection()),
        lambda: administration.copy(several, "target", MessageSelection()),
        lambda: administration.statistics(several),
    ):
        with pytest.raises(ConfigurationError, match="expected the name of one queue"):
            refused()
    assert bodies(administration.browse(filled)) == list(BODIES)


@pytest.mark.parametrize("lab", ["rabbitmq"], indirect=True)
def test_refusals(connect: Connect, lab: Lab, name: str) -> None:
    """RabbitMQ offers nothing without its API, and neither moves nor selectors with it."""
    without = connect().administration()
    assert without.operations == frozenset()
    for ask in (without.queues, lambda: without.statistics(name), lambda: without.browse(name)):
        with pytest.raises(CapabilityError, match="management_url"):
            ask()
    administration = connect(management_url=lab.management_url).administration()
    for refused in (
        lambda: administration.move(name, "other", MessageSelection()),
        lambda: administration.copy(name, "other", MessageSelection()),
        lambda: administration.delete(name, MessageSelection(ids=("1",))),
        lambda: administration.browse(name, selector="n = 1"),
    ):
        with pytest.raises(CapabilityError, match="rabbitmq"):
            refused()
    assert "redelivered" in administration.browse_note
    assert administration.operations == set(QueueOperation) - {QueueOperation.MOVE, QueueOperation.COPY}
    administration.close()
