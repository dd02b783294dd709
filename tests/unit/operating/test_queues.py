"""Queues: which there are, who uses them, how fast they fill, and the messages on them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError
from airflow_provider_jmsjca.operating.queues import (
    DestinationUse,
    QueueChange,
    QueueEntry,
    browse_by_consuming,
    browse_queue,
    change_messages,
    count_messages,
    find_message,
    incomplete_count_reason,
    list_queues,
    matching,
    open_connection,
    queue_name,
    read_messages,
    registered_uses,
    used_queues,
)
from airflow_provider_jmsjca.store.base import ActivationKind, RunReport, RunStatus
from airflow_provider_jmsjca.transports.administration import (
    MessageSelection,
    QueueAdministration,
    QueueOperation,
    QueueStatistics,
)
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Outgoing
from airflow_provider_jmsjca.transports.capabilities import BrokerInfo
from tests.memory_store import MemoryStore

BROKER = BrokerInfo(product="test", version="1", address="b:1")
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


class Counting(QueueAdministration):
    """Reports other figures at each call."""

    def __init__(self, *figures: list[QueueStatistics]) -> None:
        super().__init__(BROKER)
        self._figures = list(figures)

    def queues(self) -> list[QueueStatistics]:
        return self._figures.pop(0)


class Browsing(QueueAdministration):
    """A queue of 450 messages."""

    def __init__(self) -> None:
        super().__init__(BROKER)
        self.messages = [replace(JmsMessage.text(str(n)), message_id=f"id-{n}") for n in range(450)]
        self.moved: MessageSelection | None = None

    def browse(
        self, queue: str, *, selector: str | None = None, skip: int = 0, limit: int = 100
    ) -> Sequence[JmsMessage]:
        del queue
        found = [each for each in self.messages if selector is None or str(each.body).startswith(selector)]
        return found[skip : skip + limit]

    def statistics(self, queue: str) -> QueueStatistics | None:
        return QueueStatistics(name=queue, messages=450) if queue == "orders" else None

    def move(self, queue: str, target: str, selection: MessageSelection) -> int:
        assert (queue, target) == ("orders", "later")
        self.moved = selection
        return 3


def test_queues_have_their_figures_rates_and_users() -> None:
    before = [
        QueueStatistics(name="b", messages=1, enqueued=10, dequeued=9),
        QueueStatistics(name="reset", messages=1, enqueued=500, dequeued=500),
    ]
    after = [
        QueueStatistics(name="b", messages=5, enqueued=1_010, dequeued=9),
        QueueStatistics(name="new", messages=0),
        QueueStatistics(name="reset", messages=1, enqueued=1, dequeued=0),
    ]
    slept: list[float] = []
    found = list_queues(
        Counting(before, after),
        used={"b": ["asset orders"], "a": ["task etl.load"]},
        rate_over=timedelta(seconds=2),
        sleep=slept.append,
    )
    assert slept == [2.0]
    assert [each.name for each in found.queues] == ["a", "b", "new", "reset"]
    missing, filling, new, reset = found.queues
    assert missing == QueueEntry(name="a", used_by=("task etl.load",))
    assert filling.used_by == ("asset orders",)
    assert filling.enqueued_per_second is not None
    assert filling.enqueued_per_second > 0
    assert filling.dequeued_per_second == 0.0
    assert (new.enqueued_per_second, reset.enqueued_per_second) == (None, None), "no count before"
    assert [each.name for each in matching(found.queues, pattern="[br]*", filled=True)] == ["b", "reset"]


def test_only_used_queues_are_listed_even_if_the_broker_lists_none() -> None:
    listed = list_queues(Counting([QueueStatistics(name="b", messages=1)]), used={}, only_used=True)
    assert listed.queues == ()
    unlisted = list_queues(QueueAdministration(BROKER), used={"b": ["x"]}, only_used=True)
    assert [(each.name, each.statistics) for each in unlisted.queues] == [("b", None)]
    assert "listing queues is not offered by test 1 at b:1" in unlisted.note
    with pytest.raises(CapabilityError, match="listing queues is not offered"):
        list_queues(QueueAdministration(BROKER))


def test_a_queue_belongs_to_the_broker_of_its_connection_or_its_host() -> None:
    settings = ConnectionSettings(scheme="stomp", hosts=(("one", 61613), ("two", 61613)))
    orders = Destination.queue("orders")
    uses = [
        DestinationUse(destination=orders, user="asset", jms_conn_id="jms_default"),
        DestinationUse(destination=orders, user="elsewhere", jms_conn_id="jms_other"),
        DestinationUse(destination=orders, user="up", broker="TWO:61613"),
        DestinationUse(destination=orders, user="connecting", broker="stomp://zero:1,one:61613"),
        DestinationUse(destination=orders, user="far", broker="stomp://one:61614"),
        DestinationUse(destination=orders, user="unknown"),
        DestinationUse(destination=Destination.topic("t"), user="asset", jms_conn_id="jms_default"),
    ]
    found = used_queues(uses, jms_conn_id="jms_default", settings=settings)
    assert found == {"orders": ("asset", "connecting", "up")}


def test_activations_in_the_registry_use_their_destinations() -> None:
    store = MemoryStore()

    def report(run: str, destination: str, status: RunStatus = RunStatus.UP) -> RunReport:
        return RunReport(
            run=run,
            activation=run,
            kind=ActivationKind.LISTENER,
            owner="dag.task",
            broker="b:1",
            destination=destination,
            status=status,
            started_at=NOON,
            since=NOON,
        )

    store.activations.report(
        [report("1", "queue://a, queue://b"), report("2", "queue://c", RunStatus.ENDED), report("3", "x://y")]
    )
    found = registered_uses(store)
    assert [(str(each.destination), each.user) for each in found] == [
        ("queue://a", "dag.task"),
        ("queue://b", "dag.task"),
    ]
    store.owners.leave()
    assert {each.user for each in registered_uses(store)} == {"dag.task (lost)"}


def test_messages_are_browsed_page_by_page_found_and_counted() -> None:
    administration = Browsing()
    page = browse_queue(administration, "orders", skip=440, limit=5)
    assert ([each.body for each in page.messages], page.more) == ([f"44{n}" for n in range(5)], True)
    assert not browse_queue(administration, "orders", skip=445, limit=5).more
    assert find_message(administration, "orders", "id-449").body == "449"
    with pytest.raises(ConfigurationError, match="no message 'id-450' is on queue 'orders'"):
        find_message(administration, "orders", "id-450")
    assert count_messages(administration, "orders", None) == 450
    assert count_messages(administration, "orders", "44") == 11
    assert count_messages(administration, "unknown", None) == 0


def test_pages_grow_so_that_a_broker_reads_each_message_a_few_times_only() -> None:
    """RabbitMQ reads each page from the start of the queue, and marks what it reads."""
    asked: list[tuple[int, int]] = []

    class Paging(Browsing):
        def browse(
            self, queue: str, *, selector: str | None = None, skip: int = 0, limit: int = 100
        ) -> Sequence[JmsMessage]:
            asked.append((skip, limit))
            return super().browse(queue, selector=selector, skip=skip, limit=limit)

    assert len(list(Paging().browse_all("orders"))) == 450
    assert asked == [(0, 200), (200, 200), (400, 400)]
    asked.clear()
    assert len(list(Paging().browse_all("orders", most=400))) == 400
    assert asked == [(0, 400)]


def test_a_dry_run_counts_and_changes_nothing() -> None:
    administration = Browsing()
    two = MessageSelection(ids=("id-3", "id-449", "id-999"))
    move = QueueChange.MOVE
    assert change_messages(administration, move, "orders", two, target="later", dry_run=True) == 2
    assert administration.moved is None
    assert change_messages(administration, move, "orders", two, target="later") == 3
    assert administration.moved == two
    with pytest.raises(CapabilityError, match="deleting messages of 'orders' is not offered"):
        change_messages(administration, QueueChange.DELETE, "orders", two)


class Limited(Browsing):
    """A broker that shows the first 200 messages only: with an error behind them, or as if it had no more."""

    def __init__(self, *, refuses: bool) -> None:
        super().__init__()
        self._refuses = refuses

    @property
    def operations(self) -> frozenset[QueueOperation]:
        return frozenset(QueueOperation)

    def browse(
        self, queue: str, *, selector: str | None = None, skip: int = 0, limit: int = 100
    ) -> Sequence[JmsMessage]:
        return super().browse(queue, selector=selector, skip=skip, limit=max(0, min(limit, 200 - skip)))

    def browse_all(
        self, queue: str, *, selector: str | None = None, most: int | None = None
    ) -> Iterator[JmsMessage]:
        yield from super().browse_all(queue, selector=selector, most=most)
        if self._refuses and (most is None or most > 200):
            raise CapabilityError("it lists the first 200 messages only")

    def find(self, queue: str, selection: MessageSelection) -> Iterator[JmsMessage]:
        yield from super().find(queue, selection)
        if selection.ids == ("id-300",):
            raise CapabilityError("message 'id-300' was not found, and may be on queue 'orders'")

    def unseen(self, queue: str, *, selector: str | None = None, shown: int | None = None) -> str:
        del queue, selector
        return f"The broker shows the first 200 of 450, not {shown}."


def test_a_page_behind_the_messages_that_the_broker_shows_says_so() -> None:
    page = browse_queue(Limited(refuses=False), "orders", skip=300, limit=50)
    assert (page.messages, page.more) == ((), False)
    assert page.note == "The broker shows the first 200 of 450, not None."
    assert browse_queue(Limited(refuses=False), "orders", skip=150).note.endswith("not 200.")
    assert browse_queue(Limited(refuses=False), "orders", skip=150, limit=10).note == ""
    assert browse_queue(Browsing(), "orders", skip=400, limit=50).note == ""


def test_a_message_that_may_be_behind_those_that_the_broker_shows_is_not_said_to_be_gone() -> None:
    with pytest.raises(CapabilityError, match="may be on queue 'orders'"):
        find_message(Limited(refuses=False), "orders", "id-300")
    two = MessageSelection(selector="1")
    counted = count_messages(Limited(refuses=False), "orders", "1")
    assert counted == 111
    assert incomplete_count_reason(Limited(refuses=False), "orders", two, counted).endswith("not 111.")
    for exact in (MessageSelection(), MessageSelection(ids=("id-1",))):
        assert incomplete_count_reason(Limited(refuses=False), "orders", exact, 1) == ""


@pytest.mark.parametrize(
    ("refuses", "note"),
    [
        (True, "it lists the first 200 messages only"),
        (False, "The broker shows the first 200 of 450, not 200."),
    ],
)
def test_a_broker_that_shows_only_the_first_messages(refuses: bool, note: str) -> None:
    administration = Limited(refuses=refuses)
    taken: list[JmsMessage] = []
    for limit in (1_000, None):
        taken.clear()
        found = read_messages(administration, "orders", taken.append, limit=limit)
        assert (len(taken), found.read, found.more, found.total) == (200, 200, True, 450)
        assert note in found.note
    taken.clear()
    found = read_messages(administration, "orders", taken.append, limit=100)
    assert (len(taken), found.read, found.more, found.total, found.note) == (100, 100, True, 450, "")
    everything = MessageSelection()
    assert change_messages(administration, QueueChange.DELETE, "orders", everything, dry_run=True) == 450


def test_browsing_by_consuming_gives_everything_back() -> None:
    settings = ConnectionSettings(scheme="vm", hosts=((uuid.uuid4().hex, None),))
    orders = Destination.queue("orders")
    with open_connection(settings) as made:
        made.send(Outgoing(destination=orders, message=JmsMessage.text(str(n))) for n in range(4))
        unbrowsable = SimpleNamespace(
            broker=made.broker,
            capabilities=replace(made.capabilities, browse=False),
            administration=lambda: QueueAdministration(made.broker),
            consume=made.consume,
        )
        page = browse_by_consuming(cast("Any", unbrowsable), "orders", skip=1, limit=2)
        assert ([each.body for each in page.messages], page.more) == (["1", "2"], True)
        assert "marked as redelivered" in page.note
        assert [each.body for each in made.browse(orders)] == ["0", "1", "2", "3"]
        with pytest.raises(
            ConfigurationError, match="can browse without consuming; leave out --by-consuming"
        ):
            browse_by_consuming(made, "orders")


def test_a_topic_is_no_queue() -> None:
    assert queue_name("queue://orders") == queue_name(" orders ") == "orders"
    with pytest.raises(ConfigurationError, match="topic://news is a topic; expected a queue"):
        queue_name("topic://news")
