"""What a listener does when a user's function, or a moment, is unkind."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn

import pytest

from airflow_provider_jmsjca.core.copies.load_balancing import with_origin
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.activations.run import one_connection
from airflow_provider_jmsjca.engine.collecting.batch_spec import EndReason
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.receiver import ReceiveBuffer, Receiver
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, Consumer, OnReceived, Outgoing, Subscription
from tests.unit.engine.listening import MODES, ORDERS, QUICK, Site, every_mode, fail, until

SECOND = timedelta(seconds=1)
ONE_OR_MANY = MODES[:2]


class _Slowly:
    """A connection that takes its time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def consume(self, subscription: Subscription, on_received: OnReceived) -> Consumer:
        time.sleep(0.4)
        consumer = self._connection.consume(subscription, on_received)
        consumer.unit = lambda _: self.unit()  # type: ignore[method-assign]  # a message opens its unit
        return consumer

    def unit(self) -> Any:
        time.sleep(0.001)
        return self._connection.unit()


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def slow_log() -> Iterator[None]:
    """Write log lines as slowly as to another machine."""

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            del record
            time.sleep(0.01)

    logger, handler = logging.getLogger("airflow_provider_jmsjca.listener"), Slow()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.mark.usefixtures("slow_log")
def test_a_connection_lost_before_it_is_up_is_opened_again(site: Site) -> None:
    site.send("a")
    connections: list[Connection] = []

    def connect_with() -> Connection:
        connections.append(connect(site.settings))
        if len(connections) == 1:
            site.broker.kill()
            site.broker.restart()
        return connections[-1]

    counts = site.activation(lambda _: None, connect_with=connect_with).run(
        max_messages=1, run_for=timedelta(seconds=5)
    )
    assert (counts.committed, len(connections)) == (1, 2)


@pytest.mark.parametrize("mode", ONE_OR_MANY)
def test_an_exception_without_a_text_is_an_exception(site: Site, mode: dict[str, Any]) -> None:
    class Nameless(Exception):  # noqa: N818 - a user's
        def __str__(self) -> str:
            raise KeyError("number")

    def handler(_: Any) -> None:
        if len(site.got) == 1:
            raise Nameless

    class Asking(logging.Handler):
        """Asks for the text, as the handlers of Airflow do, and lets nothing pass."""

        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info and record.exc_info[1]
            if error is not None:
                asked.append(str(error))

    asked: list[str] = []
    site.send("a", "b", "c")
    log, asking = logging.getLogger("airflow_provider_jmsjca.listener"), Asking()
    log.addHandler(asking)
    try:
        counts = site.activation(handler, **mode).run(max_messages=3, run_for=timedelta(seconds=5))
    finally:
        log.removeHandler(asking)
    assert (counts.committed, counts.rolled_back) == (3, 1)
    assert asked == ["Nameless: <its text can't be had: str() raised KeyError>"]


async def _coroutine(_: Any) -> None:
    """Never run."""


def _generator(_: Any) -> Iterator[None]:
    yield


class _Awaitable:
    def __await__(self) -> Iterator[None]:
        yield


class _Asynchronous:
    async def __call__(self, _: Any) -> None:
        """Never run."""


@pytest.mark.parametrize("handler", [_coroutine, _generator, _Asynchronous()])
def test_a_function_that_a_call_does_not_run_is_refused(site: Site, handler: Callable[[Any], Any]) -> None:
    refused = r"so calling it does nothing; expected a plain function\. In it, asyncio\.run"
    made = site.activation(lambda _: None)
    with pytest.raises(ConfigurationError, match=f"the handler is asynchronous or a generator, {refused}"):
        Listener(one_connection(made.settings, lambda: connect(site.settings)), handler)
    with pytest.raises(ConfigurationError, match=f"subscribes is asynchronous or a generator, {refused}"):
        site.activation(lambda _: None, subscribes=handler, unsubscribed_destination="queue://other")


@pytest.mark.parametrize("unrun", [_coroutine, _generator, lambda _: _Awaitable()])
def test_work_that_was_returned_and_not_done_is_rolled_back(
    site: Site, unrun: Callable[[Any], object]
) -> None:
    site.send("a")
    made = site.activation(lambda _: None, redelivery_handling="1:move(queue:dead)")
    connections = one_connection(made.settings, lambda: connect(site.settings))
    again = Listener(connections, lambda delivery: unrun(delivery))  # noqa: PLW0108
    counts = again.run(max_messages=1, run_for=timedelta(seconds=5))
    assert (counts.committed, counts.moved) == (0, 1)
    assert site.bodies("dead") == ["a"]


@pytest.mark.parametrize("eliminated", [False, True])
def test_what_was_put_back_under_its_old_id_is_not_taken_for_settled(site: Site, *, eliminated: bool) -> None:
    def send(body: str) -> None:
        message = replace(JmsMessage.text(body), message_id="ID:1")
        connection = connect(site.settings)
        connection.send([Outgoing(destination=ORDERS, message=with_origin(message, message, ORDERS))])
        connection.close()

    running, go_on = threading.Event(), threading.Event()

    def handler(delivery: Any) -> None:
        if delivery.body == "broken":
            raise ValueError(delivery.body)
        if not go_on.is_set():
            running.set()
            go_on.wait(5)
            raise ValueError("for a moment")

    listener = site.activation(
        handler,
        balanced=True,
        redelivery_handling="1:move(queue:dead)",
        duplicate_event_elimination=eliminated,
    )
    listener.start()
    send("broken")
    until(lambda: listener.counts.moved == 1)
    send("mended")
    assert running.wait(5)
    site.broker.restart()
    until(lambda: listener.statistics().connections == 2)
    go_on.set()
    until(lambda: listener.counts.moved == 2)
    assert listener.counts.repeated == 0
    assert listener.stop()
    assert site.bodies("dead") == ["broken", "mended"]


@pytest.mark.parametrize("from_thread", [False, True])
def test_what_was_acknowledged_with_a_stop_is_committed_j195(site: Site, *, from_thread: bool) -> None:
    def finish(delivery: Any) -> None:
        if from_thread:
            until(lambda: listener.statistics().active == 0)  # the handler has returned
        delivery.stop_message_delivery("enough")
        delivery.acknowledge()

    def handler(delivery: Any) -> None:
        if from_thread:
            threading.Thread(target=finish, args=(delivery,)).start()
        else:
            finish(delivery)

    site.send("a")
    listener = site.activation(handler, concurrency_mode="cc", hold_until_ack=True)
    counts = listener.run(run_for=timedelta(seconds=5))
    assert (counts.committed, counts.rolled_back, listener.stop_reason) == (1, 0, "enough")


@pytest.mark.parametrize("held", [False, True])
def test_what_is_sent_after_the_end_of_a_delivery_is_refused(site: Site, *, held: bool) -> None:
    kept: list[Any] = []

    def handler(delivery: Any) -> None:
        kept.append(delivery)
        if held:
            delivery.acknowledge()

    site.send("a")
    spec = {"concurrency_mode": "cc", "hold_until_ack": True} if held else {}
    listener = site.activation(handler, **spec)
    listener.start()
    until(lambda: listener.counts.committed == 1)
    with pytest.raises(ConfigurationError, match="this delivery has ended"):
        kept[0].send("queue://out", JmsMessage.text("late"))
    assert listener.stop()
    assert site.bodies("out") == []


def test_two_threads_may_send_for_one_held_delivery(site: Site) -> None:
    def handler(delivery: Any) -> None:
        threads = [
            threading.Thread(target=delivery.send, args=("queue://out", JmsMessage.text("x")))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        delivery.acknowledge()

    site.send(*"abcdefgh")
    listener = site.activation(
        handler,
        connect_with=lambda: _Slowly(connect(site.settings)),  # type: ignore[arg-type,return-value]
        concurrency_mode="cc",
        hold_until_ack=True,
    )
    assert listener.run(max_messages=8, run_for=timedelta(seconds=10)).committed == 8
    assert site.broker.depth("out") == 32


def test_idleness_begins_when_the_subscription_is_there(site: Site) -> None:
    site.send("a", "b")
    listener = site.activation(
        lambda _: None,
        connect_with=lambda: _Slowly(connect(site.settings)),  # type: ignore[arg-type,return-value]
    )
    counts = listener.run(idle_for=QUICK, run_for=timedelta(seconds=5))
    assert (listener.ended_by, counts.committed) == (EndReason.IDLE, 2)


def test_a_stop_right_after_a_start_stops(site: Site) -> None:
    for _ in range(50):
        listener = site.activation(lambda _: None)
        starting = threading.Thread(target=listener.start)
        starting.start()
        until(lambda: listener.running)  # noqa: B023 - of this round
        assert listener.stop(SECOND)
        starting.join()
        assert not listener.running


def test_a_handler_may_ask_for_a_stop_and_for_nothing_that_waits_for_it(site: Site) -> None:
    said: list[Any] = []

    def handler(_: Any) -> None:
        for call in (listener.drain, listener.restart, listener.run):
            with pytest.raises(ConfigurationError, match="waits for handlers to return"):
                call()
        said.append(listener.stop())

    site.send("a")
    listener = site.activation(handler)
    began = time.monotonic()
    assert listener.run(run_for=timedelta(seconds=10)).committed == 1
    assert said == [False]
    assert time.monotonic() - began < 5


def test_a_run_with_a_limit_is_refused_while_it_runs_without(site: Site) -> None:
    listener = site.activation(lambda _: None)
    listener.start()
    with pytest.raises(
        ConfigurationError, match="is already running; stop it before running it with a limit"
    ):
        listener.run(max_messages=5)
    assert listener.stop()


@pytest.mark.parametrize("mode", ONE_OR_MANY)
def test_whatever_subscribes_raises_is_poison(site: Site, mode: dict[str, Any]) -> None:
    def subscribes(message: JmsMessage) -> bool:
        if message.body == "b":
            _exit()
        return True

    site.send("a", "b", "c")
    listener = site.activation(
        lambda _: None,
        subscribes=subscribes,
        unsubscribed_destination="queue://other",
        dead_letter_destination="dead",
        **mode,
    )
    counts = listener.run(max_messages=3, run_for=timedelta(seconds=5))
    assert (sorted(site.got), counts.committed, site.bodies("dead")) == (["a", "c"], 2, ["b"])


def _exit() -> NoReturn:
    raise SystemExit(2)


def test_a_run_with_a_limit_sets_few_messages_aside(site: Site) -> None:
    """They go back at the end, and a broker that counts would count that."""
    site.send(*(f"m{number}" for number in range(40)))
    for _ in range(10):
        listener = site.activation(lambda _: None, redelivery_handling="8:move(queue:dead)")
        assert listener.run(max_messages=4, run_for=timedelta(seconds=5)).committed == 4
    assert sorted(set(site.got)) == sorted(f"m{number}" for number in range(40))


@every_mode
def test_whatever_goes_wrong_in_decoding_is_that_messages_poison(
    site: Site, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are handled, and the listener goes on."""

    def decode(message: JmsMessage, **changes: Any) -> JmsMessage:
        if message.body == "bad":
            raise ConfigurationError("a destination needs a name")
        return replace(message, **changes)

    monkeypatch.setattr("airflow_provider_jmsjca.transports.memory.connection.replace", decode)
    site.send("a", "bad", "b", "bad", "c")
    counts = site.activation(lambda _: None, **mode).run(idle_for=timedelta(seconds=0.4))
    assert (counts.committed, set(site.got)) == (3, {"a", "b", "c"})
    assert site.bodies("orders") == ["bad", "bad"]


def test_a_call_that_never_was_is_not_counted(site: Site) -> None:
    """A message that stays makes the listener consume anew while the next one is delayed."""
    undecodable = {
        "_JMSJCA_PublishedJMSDestination": "queue://x",
        "_JMSJCA_PublishedJMSTimestamp": "no number",
    }

    def handler(delivery: Any) -> None:
        if delivery.body == "a" and not delivery.redelivery_count:
            raise ValueError(delivery.body)

    site.send("a")
    site.send("bad", **undecodable)
    site.send("b")
    listener = site.activation(handler, balanced=True, redelivery_handling="1:100")
    counts = listener.run(idle_for=timedelta(seconds=0.4))
    assert counts.delivered == len(site.got) == 3
    assert (counts.committed, counts.rolled_back) == (2, 1)


@pytest.mark.parametrize("mode", ONE_OR_MANY)
def test_a_wish_that_cannot_be_read_is_a_failure(site: Site, mode: dict[str, Any]) -> None:
    """As a comparison of columns, of which nobody says whether it is true."""

    class Column:
        def __bool__(self) -> NoReturn:
            raise ValueError("the truth value of a column is ambiguous")

    def handler(delivery: Any) -> None:
        if delivery.body == "a":
            delivery.rollback_only = Column()

    site.send("a", "b", "c")
    listener = site.activation(handler, redelivery_handling="2:move(queue:dead)", **mode)
    counts = listener.run(max_messages=3, run_for=timedelta(seconds=5))
    assert (counts.committed, counts.moved) == (2, 1)
    assert site.bodies("dead") == ["a"]


UNDECODABLE = {"_JMSJCA_PublishedJMSDestination": "queue://x", "_JMSJCA_PublishedJMSTimestamp": "no number"}


def test_a_message_that_stays_frees_its_place_for_the_next_while_others_are_held(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.send("a", "b")
    site.send("bad", **UNDECODABLE)
    site.send("c")

    def finish(delivery: Any) -> None:
        dispatcher = listener.runs[0]._dispatcher
        if delivery.body == "a":  # until there is no room for c, and that was seen
            until(lambda: dispatcher.receiver.buffer.arrivals and not dispatcher.workers._queue.qsize())
        elif delivery.body == "b":
            until(lambda: "it stays" in caplog.text and listener.statistics().in_flight == 1)
        delivery.acknowledge()

    listener = site.activation(
        lambda delivery: threading.Thread(target=finish, args=(delivery,)).start(),
        balanced=True,
        concurrency_mode="cc",
        endpoint_pool_max_size=2,
        hold_until_ack=True,
    )
    counts = listener.run(max_messages=3, run_for=timedelta(seconds=5))
    assert (listener.ended_by, counts.committed, sorted(site.got)) == (EndReason.COUNT, 3, ["a", "b", "c"])
    assert site.bodies("orders") == ["bad"]


def test_a_message_that_stays_frees_its_place_for_the_next_of_a_batch(site: Site) -> None:
    site.send("a")
    site.send("bad", **UNDECODABLE)
    site.send("b")

    def handler(delivery: Any) -> None:
        if delivery.body == "a":
            until(lambda: listener.statistics().in_flight == 2)

    listener = site.activation(
        handler, balanced=True, concurrency_mode="cc", endpoint_pool_max_size=1, batch_size=2
    )
    counts = listener.run(max_messages=2, run_for=timedelta(seconds=5))
    assert (listener.ended_by, counts.committed) == (EndReason.COUNT, 2)
    assert site.bodies("orders") == ["bad"]


@every_mode
@pytest.mark.parametrize("handling", ["1:1", "5:1; 60:move(queue:dlq)"], ids=["for ever", "moved at last"])
def test_a_run_ends_when_the_same_message_only_fails(site: Site, mode: dict[str, Any], handling: str) -> None:
    """One that is moved in the end is waited for, and so is one whose handler takes long."""
    site.send("bad")
    listener = site.activation(fail, redelivery_handling=handling, **mode)
    counts = listener.run(idle_for=QUICK, run_for=timedelta(seconds=20))
    if "move" in handling:
        assert (listener.ended_by, counts.moved, site.bodies("dlq")) == (EndReason.IDLE, 1, ["bad"])
    else:
        assert (listener.ended_by, counts.moved, counts.settled) == (EndReason.FAILURES, 0, 0)
        assert counts.rolled_back >= 10
        assert site.bodies("orders") == ["bad"]


def test_failures_among_successes_end_no_run(site: Site) -> None:
    """Nor do failures that are few; `failure_timeout` may be longer than `idle_for`."""
    site.send("bad", *map(str, range(12)))

    def handle(delivery: Delivery) -> None:
        if delivery.body == "bad" and delivery.redelivery_count < 14:
            raise ValueError("not yet")
        time.sleep(0.03)

    listener = site.activation(
        handler=handle, redelivery_handling="1:25", concurrency_mode="cc", endpoint_pool_max_size=2
    )
    assert listener.run(idle_for=QUICK, failure_timeout=SECOND * 5, run_for=SECOND * 15).committed == 13
    assert listener.ended_by is EndReason.IDLE


def test_failure_timeout_is_more_than_nothing(site: Site) -> None:
    with pytest.raises(ConfigurationError, match="failure_timeout is 0:00:00; expected more than 0"):
        site.activation(lambda _: None).run(idle_for=1, failure_timeout=timedelta(0))


@every_mode
def test_a_message_that_cannot_be_read_now_stays_and_the_others_go_on(
    site: Site, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is none of the message's fault, so it is neither moved nor deleted."""

    def decode(message: JmsMessage, **changes: Any) -> JmsMessage:
        if message.body == "large":
            raise MemoryError
        return replace(message, **changes)

    monkeypatch.setattr("airflow_provider_jmsjca.transports.memory.connection.replace", decode)
    site.send("a", "large", "b", "c")
    listener = site.activation(lambda _: None, **mode, dead_letter_destination="queue://dead")
    counts = listener.run(idle_for=timedelta(seconds=0.4), run_for=timedelta(seconds=20))
    assert (counts.committed, set(site.got)) == (3, {"a", "b", "c"})
    assert site.bodies("orders") == ["large"]
    assert "it stays at the broker until the next connection: MemoryError" in caplog.text


@every_mode
def test_after_a_fault_of_ours_a_listener_goes_on_over_another_connection(
    site: Site, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = iter([AssertionError("this never happens")])
    may_take = Receiver.may_take

    def faulty(receiver: Receiver, buffer: ReceiveBuffer) -> bool:
        for fault in faults if buffer.arrivals else ():
            raise fault
        return may_take(receiver, buffer)

    monkeypatch.setattr(Receiver, "may_take", faulty)
    site.send("a", "b", "c")
    came: dict[str, list[bool]] = {"a": [], "b": [], "c": []}
    listener = site.activation(lambda each: came[each.body].append(each.message.redelivered), **mode)
    assert listener.run(max_messages=3, run_for=timedelta(seconds=20)).committed == 3
    # What another thread had handled and not committed comes again over the other connection.
    assert all(again and all(again[1:]) for again in came.values()), came
    assert "internal error; continuing over a new connection" in caplog.text


def test_what_came_over_a_lost_connection_is_not_kept_while_a_handler_takes_long(site: Site) -> None:
    go_on, earlier = threading.Event(), _intakes()
    listener = site.activation(lambda _: go_on.wait(20))
    site.send(*("m" for _ in range(50)))
    listener.start()
    until(lambda: listener.statistics().in_flight == 1)
    for _ in range(5):
        connections = listener.statistics().connections
        site.broker.kill()
        site.broker.restart()
        site.send(*("m" for _ in range(50)))
        until(lambda before=connections: listener.statistics().connections > before)
    kept = [each for each in _intakes() if not any(each is other for other in earlier)]
    assert sum(len(each.arrivals) for each in kept if not each.open) == 0
    assert len(kept) <= 4
    go_on.set()
    listener.stop()


def _intakes() -> list[ReceiveBuffer]:
    """Return the intakes that are kept in this process, by other tests' listeners too."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is ReceiveBuffer]  # others ask back
