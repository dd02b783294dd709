"""A broker that shows only the first messages of a queue: those behind them are found, or it is said."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Iterator

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
    QueueChange,
    Replay,
    browse_queue,
    change_messages,
    connect,
    list_dead_letters,
    replay_dead_letters,
)
from tests.internals.operating import find_message
from tests.servers.broker import Broker

SHOWN = 10
"""`maxBrowsePageSize` of queues `narrow.…`."""
DEEP = 450
"""More than two pages of 200 messages, which the broker reads into its memory for one browse each."""


@pytest.fixture
def connection(activemq: Broker) -> Iterator[Connection]:
    with contextlib.closing(connect(activemq.settings())) as opened:
        yield opened


@pytest.fixture
def administration(connection: Connection) -> Iterator[QueueAdministration]:
    with contextlib.closing(connection.administration()) as opened:
        yield opened


def filled(connection: Connection, count: int = DEEP, prefix: str = "narrow") -> str:
    """Return the name of a new queue with messages, whose property `n` is their index."""
    queue = f"{prefix}.{uuid.uuid4().hex[:8]}"
    connection.send(
        Outgoing(destination=Destination.queue(queue), message=JmsMessage.text(str(n), {"n": str(n)}))
        for n in range(count)
    )
    return queue


def last_id(connection: Connection, queue: str) -> str:
    """Return the id of the last message, which the broker made from that of the first."""
    first = next(connection.browse(Destination.queue(queue)))
    begin, _, number = str(first.message_id).rpartition(":")
    return f"{begin}:{int(number) + DEEP - 1}"


def bodies(found: list[JmsMessage]) -> list[object]:
    return [each.body for each in found]


@pytest.mark.parametrize("prefix", ["narrow", "wide"])
def test_a_message_behind_those_that_are_shown_is_found(
    prefix: str, connection: Connection, administration: QueueAdministration
) -> None:
    queue = filled(connection, prefix=prefix)
    wanted = last_id(connection, queue)
    assert find_message(administration, queue, wanted).body == str(DEEP - 1)
    with pytest.raises(ConfigurationError, match="no message 'ID:gone' is on queue"):
        find_message(administration, queue, "ID:gone")


def test_a_page_and_a_list_say_that_there_are_more(
    connection: Connection, administration: QueueAdministration
) -> None:
    queue = filled(connection, 30)
    for page in (browse_queue(administration, queue), browse_queue(administration, queue, skip=20)):
        assert "The broker shows the first 10 of 30 messages to a browse, and has more." in page.note
        assert "maxBrowsePageSize of the queue's policyEntry in activemq.xml" in page.note
    assert bodies(list(browse_queue(administration, queue, limit=3).messages)) == ["0", "1", "2"]
    assert browse_queue(administration, queue, limit=3).note == ""
    found = list_dead_letters(administration, queue)
    assert (found.examined, found.more, found.total) == (SHOWN, True, 30)
    assert found.coverage == "the groups count the first 10 dead letters of 30 on the queue"
    chosen = browse_queue(administration, queue, selector="n <> '3'")
    assert "The broker shows the first 10 messages that match to a browse" in chosen.note
    for selector in ("n = '29'", "n IN ('0', '29')"):
        assert browse_queue(administration, queue, selector=selector).note == ""
    few = filled(connection, SHOWN)
    assert browse_queue(administration, few).note == ""
    assert browse_queue(administration, f"{few}.unknown").note == ""


def test_selected_messages_behind_those_that_are_shown_are_changed(
    connection: Connection, administration: QueueAdministration
) -> None:
    queue = filled(connection)
    deep = MessageSelection(ids=(last_id(connection, queue),))
    target = f"{queue}.target"
    assert change_messages(administration, QueueChange.MOVE, queue, deep, target=target, dry_run=True) == 1
    assert administration.copy(queue, target, deep) == 1
    assert administration.move(queue, target, deep) == 1
    assert bodies(list(administration.browse(target))) == [str(DEEP - 1)] * 2
    assert administration.move(queue, target, deep) == 0
    assert administration.delete(queue, MessageSelection(selector="n = '420'")) == 1
    assert administration.browse(queue, selector="n = '420'") == []


def test_a_change_of_more_messages_than_are_shown_takes_all(
    connection: Connection, administration: QueueAdministration
) -> None:
    queue = filled(connection, 45)
    target, ids = f"{queue}.target", [str(each.message_id) for each in administration.browse(queue)]
    begin = ids[0].rpartition(":")[0]
    first = int(ids[0].rpartition(":")[2])
    fifteen = MessageSelection(ids=tuple(f"{begin}:{first + n}" for n in range(15)))
    assert administration.count(queue, fifteen) == 15
    assert administration.copy(queue, f"{queue}.copy", fifteen) == 15
    assert administration.move(queue, target, fifteen) == 15
    for refused in (MessageSelection(), MessageSelection(selector="n <> '0'")):
        with pytest.raises(CapabilityError, match="nothing was copied: the broker shows the first 10"):
            administration.copy(queue, f"{queue}.copy", refused)
    assert administration.delete(queue, MessageSelection(selector="n <> '44'")) == 29
    assert bodies(list(administration.browse(queue))) == ["44"]
    assert administration.delete(target, MessageSelection()) == 15


def test_a_replay_reaches_selected_letters_and_a_dry_run_says_that_there_are_more(
    connection: Connection,
) -> None:
    queue = filled(connection)
    source, target = Destination.queue(queue), Destination.queue(f"wide.{uuid.uuid4().hex[:8]}")

    def replay(**chosen: object) -> tuple[Counter[str], bool]:
        result = replay_dead_letters(connection, source, Replay(run="r", target=target, **chosen))  # type: ignore[arg-type]
        return result.sent, result.complete

    selector = f"JMSMessageID = '{last_id(connection, queue)}'"
    one = Counter({str(target): 1})
    assert replay(selector=selector, dry_run=True) == (one, True)
    assert replay(selector=selector) == (one, True)
    assert replay(dry_run=True) == (Counter({str(target): SHOWN}), False)
    assert replay() == (Counter({str(target): DEEP - 1}), True)


def test_without_statistics_a_message_behind_those_that_are_shown_is_found_too(
    connection: Connection, administration: QueueAdministration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a broker without the statistics plugin, from which no answer came."""
    monkeypatch.setattr(administration, "_has_statistics", False)
    queue, few = filled(connection), filled(connection, SHOWN)
    assert find_message(administration, queue, last_id(connection, queue)).body == str(DEEP - 1)
    with pytest.raises(ConfigurationError, match="no message 'ID:gone' is on queue"):
        find_message(administration, few, "ID:gone")
    with pytest.raises(CapabilityError, match=r"may be on queue .* add <statisticsBrokerPlugin/>"):
        find_message(administration, queue, "ID:gone")
    assert "shows the first 10 messages to a browse, and has more" in browse_queue(administration, queue).note


def test_what_the_broker_cannot_read_into_its_memory_is_not_said_to_be_gone(
    connection: Connection, administration: QueueAdministration, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "airflow_provider_jmsjca.transports.stomp.administration.statistics_plugin"
    monkeypatch.setattr(f"{module}._FULL_CURSOR_PERCENT", 0)
    queue = filled(connection)
    with pytest.raises(CapabilityError, match=r"may be on queue .* % of it are in use\. Replay or consume"):
        find_message(administration, queue, "ID:gone")
    one = MessageSelection(selector="n = '420'")
    with pytest.raises(CapabilityError, match=r"1 messages were deleted\. The broker compares ids"):
        administration.delete(queue, one)
    assert "about 449 of 449" in browse_queue(administration, queue, selector="n = '0'").note
