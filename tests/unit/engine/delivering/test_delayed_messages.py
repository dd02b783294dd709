"""Delays that are left to limbo: nothing lost, nothing twice, the count kept. P12-P15."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, ClassVar

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.limbo import LimboSender
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.errors import (
    CapabilityError,
    ConfigurationError,
    InDoubtError,
    JmsError,
    PermanentBrokerError,
    TransientStoreError,
)
from airflow_provider_jmsjca.store.base import EVERYTHING, LimboEntry
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.memory_store import MemoryLimbo, MemoryStore
from tests.unit.engine import streaming
from tests.unit.engine.brokers import LesserConnection
from tests.unit.engine.listening import QUICK, Site, every_mode, until

LATE = "1:60000"


class Limbo(MemoryLimbo):
    """Can be away."""

    away = False
    last_put: ClassVar[Sequence[LimboEntry]] = ()

    def put(self, entries: Sequence[LimboEntry], now: datetime) -> list[int]:
        if self.away:
            raise TransientStoreError("the store is away")
        Limbo.last_put = entries
        return super().put(entries, now)


class Store(MemoryStore):
    limbo: Limbo

    def __init__(self) -> None:
        super().__init__()
        self.limbo = Limbo()

    def send_all_now(self, site: Any) -> int:
        """Send what is in limbo, whenever it is due."""
        now = datetime.now(UTC)
        self.limbo.release(EVERYTHING, now)
        sender = LimboSender(self.limbo, lambda _: JmsConnection(connect(site.settings)))
        return sender.send_due().sent


@pytest.fixture
def store() -> Store:
    return Store()


def fail_bad(delivery: Delivery) -> None:
    if delivery.body == "bad":
        raise ValueError("no stock")


class NoDelay(LesserConnection):
    """A broker that can't delay."""

    def __init__(self, server: Any, **lacks: Any) -> None:
        super().__init__(server)
        self._capabilities = replace(self._capabilities, delayed_delivery=False, **lacks)


@every_mode
def test_a_long_delay_holds_neither_thread_nor_line_and_the_count_goes_on_p15(
    site: Site, store: Store, mode: dict[str, Any]
) -> None:
    """P12, P13, P15: also where the broker can't delay; the attempts are counted on when it comes back."""
    site.send("bad", "good")
    activation = site.activation(
        fail_bad,
        connect_with=lambda: NoDelay(site.broker),
        non_blocking_redelivery=True,
        store=store,
        jms_conn_id="broker",
        redelivery_handling=f"{LATE}; 3:move(queue:dlq)",
        **mode,
    )
    activation.start()
    until(lambda: activation.counts.parked == 1 and "good" in site.got)
    until(lambda: site.broker.depth("orders") == 0)
    (kept,) = store.limbo.page()
    assert (kept.jms_conn_id, kept.destination, kept.state) == ("broker", "queue://orders", "waiting")
    assert kept.due_at - datetime.now(UTC) > timedelta(seconds=50)
    assert store.send_all_now(site) == 1
    until(lambda: activation.counts.parked == 2)
    assert store.send_all_now(site) == 1
    until(lambda: site.bodies("dlq") == ["bad"])
    activation.stop()
    assert [count for body, count in site.attempts if body == "bad"] == [0, 1, 2]
    (letter,) = site.broker.messages("dlq")
    assert letter.properties["JMS_Sun_JMSJCA_RedeliveryCount"] == 3
    assert store.limbo.page() == store.attempts.page() == []


def test_the_count_in_the_store_goes_on_in_the_next_run(site: Site, store: Store) -> None:
    how: dict[str, Any] = {
        "non_blocking_redelivery": True,
        "store": store,
        "jms_conn_id": "b",
        "redelivery_handling": LATE,
    }
    site.send("bad")
    first = site.activation(fail_bad, **how)
    first.start()
    until(lambda: first.counts.parked == 1)
    first.stop()
    assert [each.attempts for each in store.attempts.page()] == [1]
    store.send_all_now(site)
    site.activation(lambda _: None, **how).run(max_messages=1)
    assert [count for body, count in site.attempts if body == "bad"] == [0, 1]
    assert store.attempts.page() == []


def test_while_the_store_is_away_the_delay_is_held_in_place(site: Site, store: Store) -> None:
    site.send("bad")
    store.limbo.away = True
    activation = site.activation(
        fail_bad, non_blocking_redelivery=True, store=store, jms_conn_id="b", redelivery_handling="1:6000"
    )
    activation.start()
    until(lambda: activation.counts.failed == 1)
    assert activation.counts.parked == 0
    activation.stop()
    assert (site.broker.depth("orders"), store.limbo.page()) == (1, [])


class Unlucky(LesserConnection):
    """Fails to commit units of work as often as there are errors to raise."""

    def __init__(
        self, server: Any, errors: list[JmsError], at_commit: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(server)
        self._errors, self._at_commit = errors, at_commit
        self._capabilities = replace(self._capabilities, delayed_delivery=False)

    def unit(self) -> Any:
        unit, errors, at_commit = super().unit(), self._errors, self._at_commit

        class Unit:
            def __getattr__(self, name: str) -> Any:
                return getattr(unit, name)

            def commit(self, _: object = None) -> None:
                at_commit()
                if errors:
                    unit.rollback()
                    raise errors.pop()
                unit.commit()

        return Unit()


def test_what_can_not_be_acknowledged_is_taken_out_of_limbo_again(site: Site, store: Store) -> None:
    errors: list[JmsError] = [PermanentBrokerError("not this one")]
    site.send("bad")
    activation = site.activation(
        fail_bad,
        connect_with=lambda: Unlucky(site.broker, errors),
        non_blocking_redelivery=True,
        store=store,
        jms_conn_id="b",
        redelivery_handling=LATE,
    )
    activation.start()
    until(lambda: activation.counts.failed == 1)
    activation.stop()
    assert (site.broker.depth("orders"), store.limbo.page()) == (1, [])


def test_a_crash_before_the_acknowledgement_makes_no_second_copy(site: Site, store: Store) -> None:
    """The message comes again, flagged, and takes its own place in limbo."""
    errors: list[JmsError] = [InDoubtError("nobody knows")]
    site.send("bad", "bad")
    activation = site.activation(
        fail_bad,
        connect_with=lambda: Unlucky(site.broker, errors),
        non_blocking_redelivery=True,
        store=store,
        jms_conn_id="b",
        redelivery_handling=LATE,
    )
    activation.start()
    until(lambda: activation.counts.parked == 2)
    activation.stop()
    assert (activation.counts.in_doubt, site.broker.depth("orders")) == (1, 0)
    assert [each.number for each in store.limbo.page()] == [2, 3]


def test_a_spec_that_connects_by_itself_has_no_limbo(site: Site, store: Store) -> None:
    """What sends from limbo would not find its broker."""
    activation = site.activation(
        fail_bad, connect_with=lambda: NoDelay(site.broker), non_blocking_redelivery=True, store=store
    )
    with pytest.raises(CapabilityError, match="leaving delays to the broker"):
        activation.run(idle_for=QUICK)


def test_a_stream_leaves_its_delays_to_limbo(store: Store) -> None:
    site = streaming.Site()

    async def work() -> None:
        site.send("bad", "good")
        made = streaming.settings(LATE, non_blocking_redelivery=True)
        made = replace(
            made, store=store, jms_conn_id="b", delivery=replace(made.delivery, record_attempts=True)
        )
        async with site.streaming(made, opens=lambda _: NoDelay(site.broker)) as stream:
            for delivery in await streaming.take(stream, 2):
                if delivery.message.body == "bad":
                    delivery.raised(ValueError("no stock"))
                else:
                    delivery.returned()
            await streaming.until(lambda: stream.counts.parked == 1)
            await streaming.until(lambda: site.broker.depth("orders") == 0)
            assert store.send_all_now(site) == 1
            again = await streaming.one(stream)
            assert (again.message.body, again.seen) == ("bad", 1)
            again.returned()
            await streaming.until(lambda: site.broker.depth("orders") == 0)

    streaming.run(work())
    assert store.limbo.page() == []


# -- what a handler sends with a delay, where the broker can't delay ----------------------------------------

LATER = Destination.queue("later")


def forward_late(delivery: Delivery) -> None:
    delivery.send(LATER, JmsMessage.text(f"1 {delivery.body}"), delay=60)
    delivery.send("queue://later", JmsMessage.text(f"2 {delivery.body}"), delay=60)
    delivery.send("queue://done", JmsMessage.text(f"done {delivery.body}"))


def forwarding(site: Site, store: Store, opens: Any, **how: Any) -> Listener:
    return site.activation(forward_late, connect_with=opens, store=store, jms_conn_id="broker", **how)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_what_a_handler_sends_later_waits_in_limbo(site: Site, store: Store, batch_size: int) -> None:
    """P18: where the broker can't delay. What goes at once goes with the acknowledgement."""
    site.send("a")
    lacks: dict[str, Any] = {"atomic_commit": False, "deduplicating_send": False}
    activation = forwarding(
        site,
        store,
        lambda: NoDelay(site.broker, **lacks),
        concurrency_mode="cc",
        batch_size=batch_size,
        batch_timeout=1,
    )
    began = datetime.now(UTC)
    activation.start()
    until(lambda: activation.counts.committed >= 1 and site.broker.depth("orders") == 0)
    activation.stop()
    # At the end of a batch the handler sends too.
    kept = store.limbo.page()
    assert len(kept) == 2 * len(site.got)
    assert {(each.destination, each.jms_conn_id, each.state) for each in kept} == {
        ("queue://later", "broker", "waiting")
    }
    assert all(each.due_at >= began + timedelta(seconds=59.99) for each in kept)
    assert site.bodies("done")[0] == "done a"
    assert site.bodies("later") == []
    assert store.send_all_now(site) == len(kept)
    assert site.bodies("later")[:2] == ["1 a", "2 a"]


def test_what_a_handler_sends_later_is_not_sent_if_it_fails(site: Site, store: Store) -> None:
    def fail_once(delivery: Delivery) -> None:
        delivery.send(LATER, JmsMessage.text("x"), delay=60)
        if delivery.redelivery_count == 0:
            raise ValueError("later")

    site.send("a")
    activation = site.activation(
        fail_once, connect_with=lambda: NoDelay(site.broker), store=store, jms_conn_id="b"
    )
    assert activation.run(max_messages=1).rolled_back == 1
    assert len(store.limbo.page()) == 1


@pytest.mark.parametrize("released", [False, True])
def test_a_crash_between_parking_and_acknowledging_sends_nothing_twice(
    site: Site, store: Store, *, released: bool
) -> None:
    """The message comes again and is handled again, be what it sent still in limbo or sent since."""

    def send_now() -> None:
        if released:
            store.send_all_now(site)

    site.send("a")
    activation = forwarding(site, store, lambda: Unlucky(site.broker, errors, at_commit=send_now))
    errors: list[JmsError] = [InDoubtError("nobody knows")]
    activation.start()
    until(lambda: activation.counts.committed == 1 and site.broker.depth("orders") == 0)
    activation.stop()
    assert site.attempts == [("a", 0), ("a", 1)]
    store.send_all_now(site)
    assert site.bodies("later") == ["1 a", "2 a"]


@pytest.mark.parametrize("released", [False, True])
def test_what_could_not_be_acknowledged_is_sent_later_by_the_next_attempt(
    site: Site, store: Store, *, released: bool
) -> None:
    """The broker refused the unit; nothing was lost, and what was sent meanwhile isn't sent again."""

    def send_now() -> None:
        if released:
            store.send_all_now(site)

    site.send("a")
    errors: list[JmsError] = [PermanentBrokerError("not this one")]
    activation = forwarding(site, store, lambda: Unlucky(site.broker, errors, at_commit=send_now))
    activation.start()
    until(lambda: activation.counts.committed == 1 and site.broker.depth("orders") == 0)
    activation.stop()
    store.send_all_now(site)
    assert site.bodies("later") == ["1 a", "2 a"]
    again = store.limbo.put(
        [replace(each, again=True) for each in Limbo.last_put], datetime.now(UTC)
    )  # once it is acknowledged nothing is remembered of it
    assert len(again) == 2


def test_while_the_store_is_away_nothing_is_acknowledged(site: Site, store: Store) -> None:
    site.send("a")
    store.limbo.away = True
    activation = forwarding(site, store, lambda: NoDelay(site.broker))
    activation.start()
    until(lambda: "the store is away" in str(activation.statistics().refused))
    assert (activation.counts.committed, site.bodies("done")) == (0, [])
    store.limbo.away = False
    until(lambda: activation.counts.committed == 1)
    activation.stop()
    assert (len(store.limbo.page()), site.attempts) == (2, [("a", 0)])


def test_outside_of_units_of_work_it_is_in_limbo_at_once(site: Site, store: Store) -> None:
    seen: list[int] = []

    def handle(delivery: Delivery) -> None:
        forward_late(delivery)
        seen.append(len(store.limbo.page()))

    site.send("a")
    activation = site.activation(
        handle,
        connect_with=lambda: NoDelay(site.broker),
        store=store,
        jms_conn_id="b",
        transaction_type="bean",
    )
    activation.run(max_messages=1)
    assert seen == [2]


def test_a_handler_names_the_moment_p18(site: Site, store: Store) -> None:
    """P18: in limbo where the broker can't delay; a moment that is past holds nothing back."""
    due, zone = datetime.now(UTC) + timedelta(hours=1), timezone(timedelta(hours=5))

    def handle(delivery: Delivery) -> None:
        delivery.send(LATER, JmsMessage.text("datetime"), deliver_at=due.astimezone(zone))
        delivery.send(LATER, JmsMessage.text("text"), deliver_at=due.isoformat())
        dated = JmsMessage.text("now", {"DELIVERY_DATE": str(int(due.timestamp() * 1000))})
        delivery.send(LATER, dated, deliver_at=due - timedelta(hours=2))
        for given, said in (
            ({"deliver_at": due.replace(tzinfo=None)}, "expected a datetime with a time zone"),
            ({"deliver_at": "tomorrow"}, "deliver_at is 'tomorrow'"),
            ({"deliver_at": due, "delay": 1}, "delay and deliver_at are both given"),
            ({"delay": -1}, "delay is -1; expected seconds of at least 0"),
        ):
            with pytest.raises(ConfigurationError, match=said):
                delivery.send(LATER, JmsMessage.text("refused"), **given)  # type: ignore[arg-type]

    site.send("a")
    how: dict[str, Any] = {"store": store, "jms_conn_id": "b", "allow_message_delays": True}
    activation = site.activation(handle, connect_with=lambda: NoDelay(site.broker), **how)
    assert activation.run(max_messages=1).committed == 1
    kept = store.limbo.page()
    assert [(each.destination, each.state) for each in kept] == [("queue://later", "waiting")] * 2
    assert all(abs(each.due_at - due) < timedelta(seconds=1) for each in kept)
    assert site.bodies("later") == ["now"]


def test_without_limbo_a_delay_is_refused_with_the_way_out(site: Site) -> None:
    refused: list[str] = []

    def handle(delivery: Delivery) -> None:
        with pytest.raises(CapabilityError) as found:
            forward_late(delivery)
        refused.append(str(found.value))

    site.send("a")
    site.activation(handle, connect_with=lambda: NoDelay(site.broker)).run(max_messages=1)
    assert "delayed_delivery" in refused[0]
    assert "use_store" in refused[0]


# -- what can't be moved, and what nothing says where to put ------------------------------------------------


class Choosy(LesserConnection):
    """Refuses what is sent to the dead-letter queue, as long as it is closed."""

    closed = True

    def unit(self) -> Any:
        unit = super().unit()

        class Unit:
            def __getattr__(self, name: str) -> Any:
                return getattr(unit, name)

            def send(self, outgoing: Outgoing) -> None:
                if Choosy.closed and outgoing.destination.name == "dlq":
                    raise PermanentBrokerError("no room")
                unit.send(outgoing)

        return Unit()


@pytest.mark.parametrize(
    "spec",
    [{"redelivery_handling": "1:move(queue:dlq)"}, {"max_attempts": 1, "dead_letter_destination": "dlq"}],
)
def test_a_move_that_is_refused_is_tried_from_limbo_and_then_stays_revivable_p15_p16_p17(
    site: Site, store: Store, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]
) -> None:
    """P15, P16, P17: it holds up nobody, and the handler isn't called again."""
    monkeypatch.setattr(Choosy, "closed", True)
    site.send("bad", "good")
    activation = site.activation(
        fail_bad,
        connect_with=lambda: Choosy(site.broker),
        store=store,
        jms_conn_id="b",
        limbo_delivery_retry=2,
        **spec,
    )
    assert activation.run(max_messages=2).moved == 1
    assert site.attempts == [("bad", 0), ("good", 0)]
    (kept,) = store.limbo.page()
    assert (kept.state, kept.destination, kept.most_tries) == ("waiting", "queue://dlq", 2)
    now = datetime.now(UTC)
    sender = LimboSender(store.limbo, lambda _: JmsConnection(Choosy(site.broker)), clock=lambda: now)
    for failed in (0, 1):
        assert sender.send_due().failed == failed
        now += timedelta(seconds=2)
    assert [each.state for each in store.limbo.page()] == ["failed"]
    assert site.bodies("dlq") == []
    Choosy.closed = False
    assert store.limbo.revive(EVERYTHING, now) == 1
    assert sender.send_due().sent == 1
    (letter,) = site.broker.messages("dlq")
    assert letter.properties["JMS_Sun_JMSJCA_ExceptionMessage"] == "no stock"
    assert store.attempts.page() == store.limbo.page() == []


@pytest.mark.parametrize(
    "spec",
    [
        {"max_attempts": 2},
        {"redelivery_handling": "1:50", "non_retryable": ["ValueError"]},
    ],
    ids=["max_attempts", "non_retryable"],
)
def test_what_failed_for_good_and_has_no_destination_stays_in_limbo_i28_i29(
    site: Site, store: Store, spec: dict[str, Any]
) -> None:
    """I28, I29: kept where the adapter discarded it; revived, it goes back to its queue and counts anew."""
    site.send("bad", "good")
    how: dict[str, Any] = {"store": store, "jms_conn_id": "b", "use_store": True, **spec}
    assert site.activation(fail_bad, **how).run(max_messages=2).moved == 1
    (kept,) = store.limbo.page()
    assert (kept.state, kept.destination) == ("failed", "queue://orders")
    assert (kept.exception_class, kept.exception_message) == ("ValueError", "no stock")
    assert store.send_all_now(site) == 0
    assert store.limbo.revive(EVERYTHING, datetime.now(UTC)) == 1
    assert store.send_all_now(site) == 1
    site.attempts.clear()
    assert site.activation(lambda _: None, **how).run(max_messages=1).committed == 1
    assert site.attempts == [("bad", 0)]


@pytest.mark.parametrize("spec", [{"max_attempts": 2}, {"non_retryable": ["ValueError"]}])
def test_without_limbo_a_destination_is_asked_for(store: Store, spec: dict[str, Any]) -> None:
    """The spec connects by itself: what sends from limbo would not find its broker."""
    with pytest.raises(ConfigurationError, match=r"missing, .* or the word discard"):
        Site.listener_settings(store=store, use_store=True, **spec)


@pytest.mark.parametrize("word", ["discard", None], ids=["discard", "nothing"])
def test_what_nobody_subscribes_to_i30(site: Site, store: Store, word: str | None) -> None:
    """I30: dropped if that is written, otherwise kept."""
    site.send("other", "mine")
    activation = site.activation(
        lambda _: None,
        store=store,
        jms_conn_id="b",
        use_store=True,
        subscribes=lambda message: message.body == "mine",
        unsubscribed_destination=word,
    )
    counts = activation.run(max_messages=2)
    assert (counts.moved, counts.deleted, counts.committed) == ((0, 1, 1) if word else (1, 0, 1))
    kept = [(each.state, each.exception_message) for each in store.limbo.page()]
    assert kept == ([] if word else [("failed", "nobody subscribes to it")])


@pytest.mark.parametrize("name", ["error_destination", "dead_letter_destination"])
def test_discard_is_said_in_so_many_words_i28(site: Site, name: str) -> None:
    """I28: an error destination that is the word discard; queue://discard is a queue."""
    site.send("bad", "good")
    spec = {name: "discard", "redelivery_handling": "1:50", "non_retryable": ["ValueError"]}
    counts = site.activation(fail_bad, **spec).run(max_messages=2)
    assert (counts.deleted, counts.committed) == (1, 1)
    site.send("bad")
    named = spec | {name: "queue://discard"}
    assert site.activation(fail_bad, **named).run(max_messages=1).moved == 1
    assert site.bodies("discard") == ["bad"]
