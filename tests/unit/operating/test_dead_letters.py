"""Dead letters are counted by reason and origin; a part of a long queue is never shown as the whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.operating.dead_letters import (
    DeadLetterGroup,
    grouped,
    list_dead_letters,
    move_details,
)
from airflow_provider_jmsjca.transports.administration import (
    QueueAdministration,
    QueueOperation,
    QueueStatistics,
)
from airflow_provider_jmsjca.transports.capabilities import BrokerInfo

BROKER = BrokerInfo(product="test", version="1", address="b:1")


def letter(number: int) -> JmsMessage:
    properties = {
        "JMS_Sun_JMSJCA_OriginalDestinationName": "orders",
        "JMS_Sun_JMSJCA_OriginalDestinationType": "javax.jms.Queue",
        "JMS_Sun_JMSJCA_ExceptionClass": "ValueError" if number % 3 else "KeyError",
        "JMS_Sun_JMSJCA_ExceptionMessage": f"order {number} is refused",
    }
    message = JmsMessage.text("x", properties=properties)
    return replace(message, message_id=f"id-{number}", timestamp=5_000 - number if number else None)


class Long(QueueAdministration):
    """A queue of dead letters that are made when they are read.

    Attributes:
        read: Number of letters read so far.
    """

    def __init__(self, letters: int, operations: Sequence[QueueOperation] = tuple(QueueOperation)) -> None:
        super().__init__(BROKER)
        self._letters = letters
        self._operations = frozenset(operations)
        self.read = 0

    @property
    def operations(self) -> frozenset[QueueOperation]:
        return self._operations

    def statistics(self, queue: str) -> QueueStatistics | None:
        return QueueStatistics(name=queue, messages=self._letters)

    def browse_all(
        self, queue: str, *, selector: str | None = None, most: int | None = None
    ) -> Iterator[JmsMessage]:
        del queue, selector
        for number in range(self._letters if most is None else min(most, self._letters)):
            self.read += 1
            yield letter(number)


def test_letters_are_grouped_with_the_first_and_the_last_time() -> None:
    found = list_dead_letters(Long(6), "orders.dlq")
    orders = Destination.queue("orders")
    assert found.groups == (
        DeadLetterGroup(
            reason="ValueError: order … is refused",
            destination=orders,
            count=4,
            first=4_995,
            last=4_999,
            example="id-1",
            example_reason="ValueError: order 1 is refused",
        ),
        DeadLetterGroup(
            reason="KeyError: order … is refused",
            destination=orders,
            count=2,
            first=4_997,
            last=4_997,
            example="id-0",
            example_reason="KeyError: order 0 is refused",
        ),
    )
    assert (found.examined, found.more, found.total, found.coverage) == (6, False, None, "")


def test_a_list_reads_a_part_of_a_long_queue_and_says_which() -> None:
    administration = Long(100_000)
    found = list_dead_letters(administration, "orders.dlq")
    assert (found.examined, found.more, found.total) == (1_000, True, 100_000)
    assert sum(each.count for each in found.groups) == 1_000
    assert administration.read == 1_001
    assert found.coverage == "the groups count the first 1000 dead letters of 100000 on the queue"


@pytest.mark.parametrize(
    ("operations", "selector", "coverage"),
    [
        ([QueueOperation.BROWSE], None, "the first 10 dead letters of more on the queue"),
        (
            list(QueueOperation),
            "region = 'eu'",
            "the first 10 dead letters that match the selector of 30 on the queue",
        ),
    ],
)
def test_what_a_part_is_a_part_of(
    operations: list[QueueOperation], selector: str | None, coverage: str
) -> None:
    found = list_dead_letters(Long(30, operations), "orders.dlq", selector=selector, limit=10)
    assert found.coverage == f"the groups count {coverage}"


def test_without_a_limit_every_letter_is_counted() -> None:
    found = list_dead_letters(Long(3_000), "orders.dlq", limit=None)
    assert [each.count for each in found.groups] == [2_000, 1_000]
    assert (found.examined, found.more, found.coverage) == (3_000, False, "")


def test_letters_of_a_broker_are_grouped_by_the_reason_that_it_gives() -> None:
    def moved(count: int, seconds: int) -> JmsMessage:
        death = {"reason": "rejected", "queue": "orders", "count": count, "time": seconds}
        # A received property may have any name.
        properties = MappingProxyType({"x-death": json.dumps([death])})
        return replace(JmsMessage.text("x"), properties=properties, message_id=f"id-{count}")

    assert grouped([moved(2, 1_000), moved(5, 900)]) == [
        DeadLetterGroup(
            reason="a consumer rejected it",
            destination=Destination.queue("orders"),
            count=2,
            first=900_000,
            last=1_000_000,
            example="id-2",
            example_reason="a consumer rejected it",
            deaths=5,
        )
    ]
    assert move_details(moved(2, 1_000)) == {
        "reason": "a consumer rejected it",
        "came from": "queue://orders",
        "moved by the broker": "2 times",
        "moved at": "1970-01-01T00:16:40.000+00:00",
    }
    assert move_details(JmsMessage.text("x")) == {}


def test_reasons_that_differ_in_a_run_or_a_file_are_one_group() -> None:
    """The id of a run and the name of a file in the spool differ with each message."""
    reasons = [
        f"task load of DAG orders failed in run asset_triggered__2026-11-2{day}T16:09:34.5+00:00_f{day}: "
        f"'x' of {day}, limit={day}.5"
        for day in (8, 9)
    ] + [f"/spool/.events/b{day}/d{day}.json: No space left" for day in (8, 9)]
    letters = [
        JmsMessage.text("a", {"JMS_Sun_JMSJCA_ExceptionMessage": reason}, message_id=str(number))
        for number, reason in enumerate(reasons)
    ]
    assert [(group.reason, group.count) for group in grouped(letters)] == [
        ("task load of DAG orders failed in run …: … of …, limit=…", 2),
        ("…: No space left", 2),
    ]
