"""What a process was handling when it died: seen in the store, and treated as the spec says. I9-I14."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.settings import ListenerContext, listener_settings
from airflow_provider_jmsjca.errors import ConfigurationError, PermanentBrokerError
from airflow_provider_jmsjca.store.base import EVERYTHING, AttemptSelection
from tests.memory_store import MemoryStore
from tests.unit.engine import streaming
from tests.unit.engine.listening import QUICK, Site, every_mode, fail, nothing, until

LONG_AGO = timedelta(minutes=2)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("host/2")


def die_with(site: Site, store: MemoryStore, *bodies: str) -> None:
    """Leave what another process leaves that is killed while it handles these messages."""
    dead = store.seen_from("host/1")
    before = datetime.now(UTC) - LONG_AGO
    dead.owners.heartbeat(before)
    ids = {each.body: str(each.message_id) for each in site.broker.messages("orders")}
    dead.attempts.begin("orders", [ids[body] for body in bodies], before)


def how(store: MemoryStore, events: str = "reprocess", **more: Any) -> dict[str, Any]:
    return {"store": store, "jms_conn_id": "b", "in_doubt_events": events, **more}


@every_mode
def test_reprocess_delivers_it_and_says_so_i11_i14(
    site: Site, store: MemoryStore, mode: dict[str, Any]
) -> None:
    """I11, I14: which is the default."""
    site.send("a", "b")
    die_with(site, store, "a")
    doubts: dict[object, bool] = {}

    def handle(delivery: Delivery) -> None:
        doubts[delivery.body] = delivery.context.in_doubt

    site.activation(handle, **how(store, **mode)).run(max_messages=2)
    assert doubts == {"a": True, "b": False}
    assert sorted(site.attempts) == [("a", 1), ("b", 0)]
    assert store.attempts.page() == []


@pytest.mark.parametrize("events", ["log_error", "ignore"])
def test_it_is_set_aside_and_can_be_revived_i12_i13(
    site: Site, store: MemoryStore, events: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I12, I13: the log has it, or not; it is kept in limbo, and nothing else is held up."""
    site.send("a", "b")
    die_with(site, store, "a")
    counts = site.activation(nothing, **how(store, events)).run(max_messages=2)
    assert (counts.moved, counts.committed, site.got) == (1, 1, ["b"])
    (kept,) = store.limbo.page()
    assert (kept.state, kept.destination, kept.exception_class) == ("failed", "queue://orders", "InDoubt")
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert any("is in doubt: host/1 died while handling it" in line for line in said) == (
        events == "log_error"
    )
    assert store.limbo.revive(EVERYTHING, datetime.now(UTC)) == 1
    assert store.attempts.page() == []


def test_fail_on_startup_stops_at_once_until_somebody_has_looked_i10(site: Site, store: MemoryStore) -> None:
    """I10: nothing is touched."""
    site.send("a", "b")
    die_with(site, store, "a")
    with pytest.raises(PermanentBrokerError, match="1 messages of 'orders' are in doubt"):
        site.activation(nothing, **how(store, "fail_on_startup")).run(idle_for=QUICK)
    assert (site.got, site.broker.depth("orders")) == ([], 2)
    assert store.attempts.resolve(AttemptSelection(open_at=frozenset({"host/1"}))) == 1
    assert site.activation(nothing, **how(store, "fail_on_startup")).run(max_messages=2).committed == 2
    assert [count for body, count in site.attempts if body == "a"] == [1]


def test_the_log_of_a_failed_start_blames_no_broker_i10(
    site: Site, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    site.send("a")
    die_with(site, store, "a")
    activation = site.activation(nothing, **how(store, "fail_on_startup"))
    activation.start()
    until(lambda: not activation.running)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"][1:]
    assert "message delivery stops: 1 messages of 'orders' are in doubt" in said


@every_mode
@pytest.mark.parametrize("events", ["reprocess", "fail_on_startup"])
def test_what_ends_in_good_order_leaves_nothing_in_doubt(
    site: Site, store: MemoryStore, mode: dict[str, Any], events: str
) -> None:
    site.send(*map(str, range(5)))
    activation = site.activation(fail, **how(store, events, redelivery_handling="1:60000", **mode))
    activation.start()
    until(lambda: site.got)
    activation.stop()
    assert store.attempts.page(open_only=True) == []
    store.close()
    assert store.owners.live({"host/2"}, datetime.now(UTC)) == frozenset()


def test_while_it_is_handled_it_is_in_hand(site: Site, store: MemoryStore) -> None:
    site.send("a")
    seen: list[Any] = []

    def look(_: Delivery) -> None:
        (found,) = store.attempts.page(open_only=True)
        seen.append(store.owners.live({found.where}, datetime.now(UTC)))

    site.activation(look, **how(store)).run(max_messages=1)
    assert seen == [{"host/2"}]


def test_the_store_is_needed_and_limbo(store: MemoryStore) -> None:
    """I9."""
    spec = ActivationSpec(destination="queue://orders", in_doubt_events="ignore", use_store=True)
    with pytest.raises(ConfigurationError, match="Set jms_conn_id alone"):
        listener_settings(spec, ListenerContext(store=store))
    with pytest.raises(ConfigurationError, match="which needs use_store or in_progress_destination"):
        listener_settings(spec.replace(use_store=None))


def test_a_stream_sets_it_aside_too(store: MemoryStore) -> None:
    site = streaming.Site()

    async def work() -> None:
        site.send("a", "b")
        spec = ActivationSpec(
            destination="queue://orders", in_doubt_events="ignore", use_store=True, concurrency_mode="cc"
        )
        die_with(site, store, "a")  # type: ignore[arg-type]  # as far as it goes
        made = listener_settings(spec.replace(name="orders"), ListenerContext(store=store, jms_conn_id="b"))
        async with site.streaming(made) as stream:
            delivery = await streaming.one(stream)
            assert delivery.message.body == "b"
            delivery.returned()
            await streaming.until(lambda: stream.counts.moved == 1)
        assert [each.exception_class for each in store.limbo.page()] == ["InDoubt"]
        await streaming.until(lambda: not store.attempts.page(open_only=True))

    streaming.run(work())


def test_the_end_of_one_activation_says_nothing_of_another_with_the_same_store(
    site: Site, store: MemoryStore
) -> None:
    """As on every member of a connection."""
    going_on, may_end = threading.Event(), threading.Event()

    def wait(_: Delivery) -> None:
        going_on.set()
        may_end.wait(5)

    site.send("a")
    first = site.activation(wait, **how(store, name="first"))
    first.start()
    assert going_on.wait(5)
    site.send("b", to=Destination.queue("bills"))
    site.activation(nothing, **how(store, name="second", destination="bills")).run(max_messages=1)
    (found,) = store.attempts.page(open_only=True)
    assert store.owners.live({found.where}, datetime.now(UTC)) == {"host/2"}
    may_end.set()
    first.stop()


@every_mode
def test_the_history_of_a_message_holds_no_password(
    site: Site, store: MemoryStore, mode: dict[str, Any]
) -> None:
    """Bare, as a driver of a database puts it into its error."""
    site.settings = replace(site.settings, username="bob", password="t1ger-lily")
    site.send("bad")

    def handle(_: Delivery) -> None:
        raise ValueError("could not log in as bob with t1ger-lily, nor at db://bob:hunter2@host")

    site.activation(handle, **how(store, **mode)).run(failure_timeout=QUICK, run_for=timedelta(seconds=5))
    (message,) = store.attempts.page()
    said = {each.exception_message for each in store.attempts.history(message.activation, message.message)}
    assert said == {"could not log in as bob with ***, nor at db://***@host"}
