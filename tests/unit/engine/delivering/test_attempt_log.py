"""Attempts and ids that are stored: what a restart, a crash and a store that is away do to them."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Collection
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.delivering.attempt_log import AttemptLog, AttemptLookup, activation_name
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.driver import Settler
from airflow_provider_jmsjca.engine.delivering.settings import ListenerContext, listener_settings
from airflow_provider_jmsjca.errors import ConfigurationError, InDoubtError, TransientStoreError
from airflow_provider_jmsjca.store.base import KEPT_FOR
from airflow_provider_jmsjca.transports import connect
from tests.memory_store import MemoryAttempts, MemoryStore
from tests.unit.engine.brokers import LesserConnection
from tests.unit.engine.listening import QUICK, Site, every_mode, fail, nothing, until

every_way = pytest.mark.parametrize(
    "mode",
    [
        {"concurrency_mode": "serial"},
        {"concurrency_mode": "cc", "endpoint_pool_max_size": 3},
        {"concurrency_mode": "sync", "endpoint_pool_max_size": 3},
        {"concurrency_mode": "cc", "endpoint_pool_max_size": 1, "batch_size": 20},
    ],
    ids=["serial", "cc", "sync", "batch"],
)


class CountingAttempts(MemoryAttempts):
    """Notes how many messages each write counted.

    `away` makes the store unusable; while `answers` is cleared, it counts and doesn't say so.
    """

    def __init__(self) -> None:
        super().__init__("test")
        self.writes: list[int] = []
        self.away = False
        self.asked = threading.Event()
        self.answers = threading.Event()
        self.answers.set()

    def begin(self, activation: str, messages: Collection[str], now: datetime) -> dict[str, int]:
        self.asked.set()
        if self.away:
            raise TransientStoreError("the store is away")
        self.writes.append(len(messages))
        found = super().begin(activation, messages, now)
        assert self.answers.wait(20)
        return found


class Store(MemoryStore):
    attempts: CountingAttempts

    def __init__(self) -> None:
        super().__init__()
        self.attempts = CountingAttempts()

    def counted(self) -> list[int]:
        return [each.attempts for each in self.attempts.page()]


@pytest.fixture
def store() -> Store:
    return Store()


@every_way
def test_counts_go_on_after_a_restart(site: Site, store: Store, mode: dict[str, Any]) -> None:
    """J129, and past J131: the second run sees what the first one had."""
    site.send("bad")
    for handed_over in (2, 3):
        activation = site.activation(fail, store=store, redelivery_handling="1:50; 4:move(queue:dlq)", **mode)
        activation.start()
        until(lambda least=handed_over: site.got.count("bad") >= least)
        activation.stop()
    counts = [count for body, count in site.attempts if body == "bad"]
    assert counts[0] == 0
    assert counts == sorted(set(counts)), "each attempt has a number of its own"
    until_moved = site.activation(fail, store=store, redelivery_handling="1:50; 4:move(queue:dlq)", **mode)
    until_moved.run(idle_for=QUICK)
    assert site.bodies("dlq") == ["bad"]
    assert [count for body, count in site.attempts if body == "bad"] == [0, 1, 2, 3]
    assert store.counted() == [], "what is settled isn't counted any more"


@every_way
def test_many_messages_are_counted_by_few_writes(site: Site, store: Store, mode: dict[str, Any]) -> None:
    site.send(*map(str, range(200)))
    assert site.activation(nothing, store=store, **mode).run(max_messages=200).committed == 200
    assert sum(store.attempts.writes) == 200
    # A batch takes its messages out of a smaller window, as they come.
    assert len(store.attempts.writes) < (200 if "batch_size" in mode else 25)
    assert store.counted() == []


@every_way
def test_what_is_settled_is_not_kept_while_nothing_comes(
    site: Site, store: Store, mode: dict[str, Any]
) -> None:
    site.send("a")
    activation = site.activation(nothing, store=store, **mode)
    activation.start()
    until(lambda: activation.counts.committed == 1)
    until(lambda: store.counted() == [])


def test_while_the_store_is_away_nothing_that_was_counted_ahead_is_handed_over(store: Store) -> None:
    attempt_log = AttemptLog(store, "orders", title="orders", clock=Clock())
    assert attempt_log.begin(["a"], lambda: ["b"]) == {"a": AttemptLookup(1)}
    attempt_log.note_trouble(TransientStoreError("the store is away"))
    assert attempt_log.counted_ahead("b") is None
    assert attempt_log.begin(["b"]) == {"b": AttemptLookup(1)}


@every_way
def test_what_was_counted_ahead_and_not_handed_over_is_taken_back(
    site: Site, store: Store, mode: dict[str, Any]
) -> None:
    site.send(*map(str, range(30)))
    activation = site.activation(
        lambda delivery: delivery.stop_message_delivery("enough"), store=store, **mode
    )
    activation.start()
    until(lambda: not activation.running)
    assert store.counted() == []
    site.got.clear()
    site.attempts.clear()
    store.activations.resume(["orders"])
    site.activation(nothing, store=store, **mode).run(idle_for=QUICK)
    assert {count for body, count in site.attempts if body != "END"} == {0}


def test_a_delay_that_a_stop_ends_is_no_attempt(site: Site, store: Store) -> None:
    site.send("a")
    activation = site.activation(fail, store=store, redelivery_handling="1:60000")
    activation.start()
    until(lambda: site.got == ["a"] and store.counted() == [2])
    activation.stop()
    assert store.counted() == [1]


@every_way
@pytest.mark.parametrize("patient", [True, False], ids=["patient", "impatient"])
def test_a_stop_while_the_store_counts_leaves_no_count(
    site: Site, store: Store, mode: dict[str, Any], patient: bool
) -> None:
    site.send("a", "b", "c")
    store.attempts.answers.clear()
    activation = site.activation(nothing, store=store, **mode)
    activation.start()
    until(lambda: activation.ready and store.counted())
    within = timedelta(seconds=20 if patient else 0)
    stop = threading.Thread(target=activation.stop, args=(within,))
    stop.start()
    until(lambda: activation.state is not ActivationState.UP)
    store.attempts.answers.set()
    stop.join(20)
    if not patient:  # it was told not to wait for this
        until(lambda: store.counted() == [])
    assert (store.counted(), site.got, site.broker.depth("orders")) == ([], [], 3)


def test_the_history_has_the_exceptions(site: Site, store: Store) -> None:
    site.send("a")
    site.activation(fail, store=store, redelivery_handling="2:delete", name="orders").run(idle_for=QUICK)
    assert store.counted() == []
    site.send("b")
    activation = site.activation(fail, store=store, redelivery_handling="2:60000", name="orders")
    activation.start()
    until(lambda: store.counted() == [3])
    (message,) = store.attempts.page()
    history = store.attempts.history(message.activation, message.message)
    activation.stop()
    assert message.activation == "orders"
    assert [(each.attempt, each.exception_class, each.exception_message) for each in history] == [
        (1, "ValueError", "no stock"),
        (2, "ValueError", "no stock"),
        (3, "", ""),
    ]


@every_way
def test_while_the_store_is_away_nothing_is_delivered_and_then_all_is(
    site: Site, store: Store, mode: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store.attempts.away = True
    site.send("a", "b")
    activation = site.activation(nothing, store=store, **mode)
    activation.start()
    assert store.attempts.asked.wait(5)
    until(lambda: activation.statistics().refused == ("the store is away",))
    store.attempts.asked.clear()
    assert store.attempts.asked.wait(5), "it is tried again"
    assert (site.got, site.broker.depth("orders")) == ([], 2)
    store.attempts.away = False
    until(lambda: activation.counts.committed == 2)
    assert activation.statistics().refused == ()
    activation.stop()
    said = [message for message in caplog.messages if "the store" in message]
    assert len(said) == 2, "once when it begins and once when it is over"
    assert "no message is handled or acknowledged until the store is available again" in said[0]


def test_a_stop_does_not_wait_for_the_store(site: Site, store: Store) -> None:
    store.attempts.away = True
    site.send("a")
    activation = site.activation(nothing, store=store)
    activation.start()
    assert store.attempts.asked.wait(5)
    assert activation.stop(timedelta(seconds=5))
    assert site.bodies("orders") == ["a"]


@every_way
def test_an_id_that_was_handled_is_known_after_a_restart_i17(
    site: Site, store: Store, mode: dict[str, Any]
) -> None:
    """I17, without its weakness: any id of the window, in whatever order it comes."""
    spec = mode | {"duplicate_event_elimination": True, "name": "orders"}
    site.send("a", "b", "c")
    handled: list[str] = []

    def note(delivery: Delivery) -> None:
        if not delivery.end_of_batch:
            handled.append(str(delivery.message_id))

    site.activation(note, store=store, **spec).run(max_messages=3)
    assert store.handled.known("orders", handled) == set(handled)
    site.send("d")
    (left,) = [str(message.message_id) for message in site.broker.messages("orders")]
    store.handled.add("orders", [left], datetime.now(UTC))
    activation = site.activation(note, store=store, **spec)
    counts = activation.run(idle_for=QUICK)
    assert (counts.repeated, counts.delivered, counts.deleted) == (1, 0, 0)
    assert site.broker.depth("orders") == 0
    assert store.counted() == []


def test_a_limited_run_does_not_count_what_was_handled_before(site: Site, store: Store) -> None:
    site.send("a", "b", "c")
    known = [str(message.message_id) for message in site.broker.messages("orders")][:2]
    store.handled.add("orders", known, datetime.now(UTC))
    activation = site.activation(nothing, store=store, duplicate_event_elimination=True, name="orders")
    counts = activation.run(max_messages=1)
    assert (site.got, counts.repeated, counts.settled) == (["c"], 2, 1)


def test_nothing_is_acknowledged_before_its_id_is_stored(site: Site, store: Store) -> None:
    away = threading.Event()
    handled = store.handled.add

    def add(activation: str, messages: Collection[str], now: datetime) -> None:
        if not away.is_set():
            away.set()
            raise TransientStoreError("the store is away")
        handled(activation, messages, now)

    store.handled.add = add  # type: ignore[method-assign]  # it is away once
    site.send("a")
    activation = site.activation(nothing, store=store, duplicate_event_elimination=True)
    activation.start()
    assert away.wait(5)
    assert (site.got, site.broker.depth("orders"), activation.counts.committed) == (["a"], 1, 0)
    until(lambda: activation.counts.committed == 1)
    assert activation.stop()
    assert (site.got, activation.counts.rolled_back) == (["a"], 0)


@pytest.mark.parametrize("how", [{}, {"batch_size": 2}, {"archive_destination": "queue://out"}])
def test_what_was_sent_is_not_lost_with_the_commit_that_sends_it(
    site: Site, store: Store, how: dict[str, Any]
) -> None:
    """The message comes again, and isn't taken for one that was handled before its unit was committed."""
    lost: list[str] = []

    class Losing(LesserConnection):
        def unit(self) -> Any:
            unit = super().unit()
            commit = unit.commit

            def losing(meanwhile: Any = None) -> None:
                if not lost:
                    lost.append("once")
                    unit.rollback()
                    raise InDoubtError("nobody knows")
                commit(meanwhile)

            unit.commit = losing  # type: ignore[method-assign]
            return unit

    def forward(delivery: Delivery) -> None:
        if not (delivery.end_of_batch or "archive_destination" in how):
            delivery.send("queue://out", JmsMessage.text(str(delivery.body)))

    site.send("a", "b")
    ids = [str(message.message_id) for message in site.broker.messages("orders")]
    activation = site.activation(
        forward,
        store=store,
        connect_with=lambda: Losing(site.broker),
        duplicate_event_elimination=True,
        concurrency_mode="cc",
        name="orders",
        **how,
    )
    activation.start()
    until(lambda: site.broker.depth("orders") == 0 and lost)
    assert activation.stop()
    assert sorted(site.bodies("out")) == ["a", "b"]
    assert store.handled.known("orders", ids) == set(ids)


def test_messages_of_several_queues_are_counted_apart(site: Site, store: Store) -> None:
    site.send("a")
    site.send("b", to=Destination.queue("bills"))
    activation = site.activation(
        fail, store=store, destination="orders;bills", redelivery_handling="1:60000", concurrency_mode="cc"
    )
    activation.start()
    until(lambda: store.counted() == [2, 2])
    names = {each.message.partition(" from ")[2] for each in store.attempts.page()}
    activation.stop()
    assert names == {"queue://orders", "queue://bills"}


def test_use_store_needs_a_store_and_something_that_outlives_the_run(store: Store) -> None:
    spec = ActivationSpec(destination="queue://orders", use_store=True)
    with pytest.raises(ConfigurationError, match="use_store is on, but there is no store"):
        listener_settings(spec)
    context = ListenerContext(store=store)
    assert listener_settings(spec, context).store is store
    assert listener_settings(ActivationSpec(destination="queue://orders"), context).store is None
    with pytest.raises(ConfigurationError, match="topic without a durable subscription"):
        listener_settings(ActivationSpec(destination="topic://prices", use_store=True), context)


def test_the_name_in_the_store_tells_subscriptions_apart() -> None:
    assert activation_name("orders", "", None, None) == "orders"
    assert activation_name("orders", "stomp://b:61613?x=1", None, "me") == "orders at stomp://b:61613"
    assert activation_name("prices", "", "sub", "me") == "prices, subscription sub of me"


def test_what_came_back_after_a_crash_is_settled_before_the_next_is_handed_over(
    site: Site, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a message that kills its process takes those before it, though handled, to their limit."""
    site.send("new", "again")
    again = str(site.broker.messages("orders")[1].message_id)
    store.attempts.begin("orders", [again], datetime.now(UTC))
    commits: list[str] = []
    connection = connect(site.settings)
    monkeypatch.setattr(type(connection), "unit", noting(type(connection).unit, commits))
    connection.close()
    site.activation(nothing, store=store, name="orders").run(max_messages=2)
    assert commits == ["unit"], "that of the message which was attempted before"


def noting(method: Any, noted: list[str]) -> Any:
    def called(*arguments: Any) -> Any:
        noted.append("unit")
        return method(*arguments)

    return called


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 5, 4, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def test_what_went_back_is_taken_back_also_if_it_was_counted_meanwhile(store: Store) -> None:
    attempt_log = AttemptLog(store, "orders", title="orders", clock=Clock())

    def ahead() -> list[str]:
        attempt_log.give_back()  # the connection is lost just now
        return ["b", "c"]

    assert attempt_log.begin(["a"], ahead) == {"a": AttemptLookup(1)}
    attempt_log.flush()
    assert [each.message for each in store.attempts.page()] == ["a"]
    assert attempt_log.begin(["b"]) == {"b": AttemptLookup(1)}


def test_old_counts_are_swept_now_and_then(store: Store) -> None:
    clock = Clock()
    attempt_log = AttemptLog(store, "orders", title="orders", clock=clock)
    attempt_log.begin(["old"])
    clock.now += timedelta(days=8)
    attempt_log.begin(["new"])
    assert [each.message for each in store.attempts.page()] == ["new"]


@pytest.mark.parametrize("kind", ["attempts", "handled"])
def test_attempts_are_counted_once_if_surplus_records_can_not_be_deleted(store: Store, kind: str) -> None:
    def locked(_now: datetime) -> int:
        raise TransientStoreError("the database is locked")

    getattr(store, kind).sweep = locked
    attempt_log = AttemptLog(store, "orders", title="orders", clock=Clock())
    assert attempt_log.begin(["a"], lambda: ["b"]) == {"a": AttemptLookup(1)}
    assert attempt_log.counted_ahead("b") == AttemptLookup(1)
    assert store.counted() == [1, 1]


def test_a_count_stays_for_seven_days_where_no_commit_was_confirmed(site: Site, store: Store) -> None:
    """Nobody knows whether the message comes again; here the broker has removed it, and it does not."""

    class Losing(LesserConnection):
        def unit(self) -> Any:
            unit = super().unit()
            commit = unit.commit

            def losing(meanwhile: Any = None) -> None:
                commit(meanwhile)
                raise InDoubtError("no answer")

            unit.commit = losing  # type: ignore[method-assign]
            return unit

    site.send("a")
    activation = site.activation(
        lambda delivery: delivery.send("queue://out", JmsMessage.text("a")),
        store=store,
        connect_with=lambda: Losing(site.broker),
        concurrency_mode="cc",
        name="orders",
    )
    activation.start()
    until(lambda: site.broker.depth("orders") == 0)
    assert activation.stop()
    (count,) = store.attempts.page("orders")
    clock = Clock()
    clock.now = count.last_at + KEPT_FOR - timedelta(minutes=1)
    other = AttemptLog(store, "bills", title="bills", clock=clock)
    other.begin(["b1"])
    assert store.attempts.page("orders") == [count]
    clock.now += timedelta(minutes=11)  # the log sweeps every ten minutes
    other.begin(["b2"])
    assert store.attempts.page("orders") == []


def test_an_activation_has_at_most_5000_counts(store: Store) -> None:
    """Beyond those of the last ten minutes: an unconfirmed count makes room for later ones."""
    clock = Clock()
    store.transaction = nullcontext  # type: ignore[method-assign,assignment]  # quicker than one to undo
    attempt_log = AttemptLog(store, "orders", title="orders", clock=clock)
    for number in range(5_001):
        clock.now += timedelta(milliseconds=1)
        attempt_log.begin([f"m{number}"])
    clock.now += timedelta(minutes=11)
    attempt_log.begin(["last"])
    left = {each.message for each in store.attempts.page(limit=6_000)}
    assert left == {"last", *(f"m{number}" for number in range(2, 5_001))}


def test_what_can_not_be_written_now_is_written_later(store: Store) -> None:
    attempt_log = AttemptLog(store, "orders", title="orders", clock=Clock())
    attempt_log.begin(["a", "b"])
    forget = store.attempts.forget

    def away(_activation: str, _messages: Collection[str]) -> None:
        raise TransientStoreError("the store is away")

    store.attempts.forget = away  # type: ignore[method-assign]
    attempt_log.settled(["a"])
    attempt_log.take_back("b")
    attempt_log.flush()
    assert attempt_log.trouble == "the store is away"
    store.attempts.forget = forget  # type: ignore[method-assign]
    attempt_log.flush()
    assert (attempt_log.trouble, store.counted()) == ("", [])


def test_an_attempt_is_taken_back_once_whatever_fails_with_it(store: Store) -> None:
    """The pending records and the next attempts are one transaction."""
    attempt_log = AttemptLog(store, "orders", title="orders", clock=Clock())
    for _ in range(3):
        attempt_log.begin(["a"])
    attempt_log.take_back("a")
    store.attempts.away = True
    for _ in range(2):
        with pytest.raises(TransientStoreError):
            attempt_log.begin(["b"])
    assert store.counted() == [3]
    store.attempts.away = False
    attempt_log.begin(["b"])
    assert sorted(store.counted()) == [1, 2]


def test_the_ids_of_a_batch_and_the_attempts_at_the_next_are_one_write(store: Store) -> None:
    attempt_log = AttemptLog(store, "orders", title="orders", keeps_ids=True, clock=Clock())
    attempt_log.begin(["a"])
    store.attempts.away, tries = True, iter([True, False])

    def wanted() -> bool:
        store.attempts.away = next(tries)
        return True

    attempt_log.handled(["a"], wanted, lambda: ["a", "b", "c"])
    assert attempt_log.counted_ahead("a") is None
    assert [attempt_log.counted_ahead(each) for each in "bc"] == [AttemptLookup(1), AttemptLookup(1)]
    assert store.attempts.writes == [1, 2]
    assert store.handled.known("orders", ["a", "b", "c"]) == {"a"}


def test_an_attempt_at_the_next_batch_is_undone_when_its_messages_return(store: Store) -> None:
    attempt_log = AttemptLog(store, "orders", title="orders", keeps_ids=True, clock=Clock())
    attempt_log.begin(["a"])
    attempt_log.handled(["a"], lambda: True, lambda: ["b"])
    attempt_log.settled(["a"])
    attempt_log.give_back()
    attempt_log.flush()
    assert store.counted() == []


def test_a_batch_is_counted_with_the_ids_of_the_batch_before_it(site: Site, store: Store) -> None:
    written: list[str] = []
    begin, add = store.attempts.begin, store.handled.add

    def begun(activation: str, messages: Collection[str], now: datetime) -> dict[str, int]:
        written.append(f"attempts {len(messages)}")
        return begin(activation, messages, now)

    def added(activation: str, messages: Collection[str], now: datetime) -> None:
        written.append(f"ids {len(messages)}")
        add(activation, messages, now)

    store.attempts.begin, store.handled.add = begun, added  # type: ignore[method-assign]
    site.send(*map(str, range(140)))

    def handle(delivery: Delivery) -> None:
        if delivery.body == "0":  # both batches have arrived
            until(lambda: len(delivery.buffer.held) + len(delivery.buffer.arrivals) == 140)

    spec: dict[str, Any] = {"concurrency_mode": "cc", "endpoint_pool_max_size": 1, "batch_size": 70}
    activation = site.activation(handle, store=store, duplicate_event_elimination=True, **spec)
    activation.start()
    until(lambda: activation.counts.committed == 140)
    assert activation.stop()
    first = written.index("ids 70")
    counted = sum(int(each.removeprefix("attempts ")) for each in written[:first])
    assert written[first:] == ["ids 70", f"attempts {140 - counted}", "ids 70", "attempts 0"]


def test_messages_may_arrive_while_the_next_are_named(site: Site) -> None:
    """The reader takes no lock: a message may arrive between any two instructions."""
    driver: Any = SimpleNamespace(
        settings=site.listener_settings(concurrency_mode="cc", batch_size=100),
        counters=None,
        attempt_log=object(),
        lock=nullcontext(),
        receiver=SimpleNamespace(reader=SimpleNamespace(plain=lambda _: None)),
    )
    settler = Settler(driver)
    buffer: Any = SimpleNamespace(open=True, held={}, arrivals=deque([None]))

    def receive(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not Settler.names_ahead.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            buffer.arrivals.append(None)
        return receive

    before = sys.gettrace()
    sys.settrace(receive)
    try:
        assert settler.names_ahead(buffer, 0) == []
    finally:
        sys.settrace(before)
    assert len(buffer.arrivals) > 1


def ended(activation: Listener) -> bool:
    return not activation.running


@every_mode
def test_a_lost_connection_counts_only_what_was_handed_over(
    site: Site, store: Store, mode: dict[str, Any]
) -> None:
    site.send(*map(str, range(40)))
    first = threading.Event()

    def cut(_: Delivery) -> None:
        if not first.is_set():
            first.set()
            site.broker.kill()
            site.broker.restart()

    activation = site.activation(cut, store=store, redelivery_handling="2:move(queue:dlq)", **mode)
    activation.start()
    until(lambda: site.broker.depth("orders") == 0)
    activation.stop()
    assert site.bodies("dlq") == []
    assert store.counted() == []


@pytest.mark.parametrize("end", ["suspend", "stop"])
def test_another_process_gets_returned_messages_at_their_first_attempt(
    site: Site, store: Store, end: str
) -> None:
    """The attempts that were counted ahead are undone before the messages return to the broker."""
    take_back = store.attempts.take_back

    def slow(activation: str, messages: Collection[str]) -> None:
        time.sleep(0.2)
        take_back(activation, messages)

    store.attempts.take_back = slow  # type: ignore[method-assign]
    site.send(*map(str, range(40)))
    began, goes_on = threading.Event(), threading.Event()
    doubts: list[bool] = []

    def wait(_: Delivery) -> None:
        began.set()
        assert goes_on.wait(20)

    one = site.activation(wait, store=store, name="orders")
    one.start()
    until(lambda: began.is_set() and len(store.counted()) == 40)
    site.attempts.clear()
    other = site.activation(
        lambda delivery: doubts.append(delivery.in_doubt),
        store=store.seen_from("another process"),
        name="orders",
    )
    other.start()
    until(lambda: other.ready)
    if end == "suspend":
        one.suspend()
    else:
        one.request_stop()
    goes_on.set()
    until(lambda: site.broker.depth("orders") == 0)
    assert {count for _, count in site.attempts} == {0}
    assert not any(doubts)
