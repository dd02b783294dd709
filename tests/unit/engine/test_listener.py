"""The listener over a broker of this process: modes, settling, redelivery, what is sent along."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.delivered import DeliveredMessage
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.delivery import ContextFilter, Delivery
from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError
from tests.unit.engine.brokers import ConfirmingConnection, LesserConnection
from tests.unit.engine.listening import MODES, QUICK, Site, until

every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode["concurrency_mode"])


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def nothing(_: Delivery) -> None:
    """Handle a message by doing nothing."""


def fail(_: Delivery) -> None:
    raise ValueError("no stock")


@every_mode
def test_what_the_handler_returns_from_is_settled(site: Site, mode: dict[str, Any]) -> None:
    """J81-J84."""
    site.send(*map(str, range(50)))
    counts = site.activation(nothing, **mode).run(idle_for=QUICK)
    assert sorted(site.got, key=int) == [str(number) for number in range(50)]
    assert (counts.delivered, counts.committed, counts.rolled_back) == (50, 50, 0)
    assert site.broker.depth("orders") == 0


@pytest.mark.parametrize("wrapping", [0, 1])
def test_every_message_is_wrapped_j174(site: Site, wrapping: int) -> None:
    site.send("a")
    got: list[object] = []
    site.activation(got.append, message_wrapping=wrapping).run(max_messages=1)
    (message,) = got
    assert isinstance(message, DeliveredMessage)
    assert message.get_object("JMSJCA.setRollbackOnly") is False


def test_serial_keeps_the_order(site: Site) -> None:
    """J81."""
    site.send(*map(str, range(200)))
    site.activation(nothing).run(max_messages=200)
    assert site.got == [str(number) for number in range(200)]


@every_mode
def test_an_exception_rolls_back_and_the_message_is_delivered_again(site: Site, mode: dict[str, Any]) -> None:
    """J129, J130, J170, W36: counted from the second sighting."""
    site.send("a")

    def third_time_lucky(delivery: Delivery) -> None:
        if delivery.redelivery_count < 2:
            raise ValueError("not yet")

    counts = site.activation(third_time_lucky, **mode).run(idle_for=QUICK)
    assert site.attempts == [("a", 0), ("a", 1), ("a", 2)]
    assert (counts.delivered, counts.redelivered, counts.committed, counts.rolled_back) == (3, 2, 1, 2)


@every_mode
def test_rollback_only_rolls_back(site: Site, mode: dict[str, Any]) -> None:
    """W36, W38, J176."""
    site.send("a")

    def once(delivery: Delivery) -> None:
        if delivery.redelivery_count == 0:
            delivery.context.set_rollback_only()
            assert delivery.context.rollback_only

    counts = site.activation(once, **mode).run(idle_for=QUICK)
    assert site.attempts == [("a", 0), ("a", 1)]
    assert (counts.committed, counts.rolled_back) == (1, 1)


@every_mode
def test_what_is_sent_goes_with_the_commit(site: Site, mode: dict[str, Any]) -> None:
    """J123, J127: not with the rollback."""
    site.send("a")

    def forward(delivery: Delivery) -> None:
        delivery.send("queue://shipped", JmsMessage.text(f"{delivery.body} {delivery.redelivery_count}"))
        if delivery.redelivery_count == 0:
            raise ValueError("after sending")

    site.activation(forward, **mode).run(idle_for=QUICK)
    assert site.bodies("shipped") == ["a 1"]
    assert site.broker.depth("orders") == 0


@every_mode
def test_what_is_sent_again_under_its_id_is_there_once(site: Site, mode: dict[str, Any]) -> None:
    """J127."""
    site.send("a", "b")

    def forward(delivery: Delivery) -> None:
        delivery.send("queue://shipped", JmsMessage.text("x"), deduplication_id="1")

    site.activation(forward, **mode).run(idle_for=QUICK)
    assert site.bodies("shipped") == ["x"]


def test_a_refused_send_rolls_back(site: Site) -> None:
    """J127: a commit that the broker refuses settles nothing."""
    site.broker.forbid(Destination.queue("shipped"))
    site.send("a")

    def forward(delivery: Delivery) -> None:
        if delivery.redelivery_count == 0:
            delivery.send("queue://shipped", JmsMessage.text("x"))

    counts = site.activation(forward).run(idle_for=QUICK)
    assert site.attempts == [("a", 0), ("a", 1)]
    assert (counts.committed, counts.failed) == (1, 1)


def test_bean_managed_sends_at_once(site: Site) -> None:
    """J127, W23: a rollback doesn't take it back; the context refuses to speak of transactions (W38)."""
    site.send("a")

    def forward(delivery: Delivery) -> None:
        delivery.send("queue://shipped", JmsMessage.text("x"))
        if delivery.redelivery_count == 0:
            delivery.context.set_rollback_only()

    counts = site.activation(forward, transaction_type="bean").run(idle_for=QUICK)
    assert site.bodies("shipped") == ["x", "x"]
    assert (counts.delivered, counts.committed, counts.rolled_back) == (2, 1, 1)


@pytest.mark.parametrize("acknowledge_mode", ["auto_acknowledge", "dups_ok_acknowledge"])
def test_both_acknowledge_modes_settle(site: Site, acknowledge_mode: str) -> None:
    """W23, J63."""
    site.send("a", "b")
    activation = site.activation(nothing, transaction_type="bean", acknowledge_mode=acknowledge_mode)
    assert activation.run(idle_for=QUICK).committed == 2
    assert site.broker.depth("orders") == 0


def test_acknowledge_modes_differ_in_waiting_for_the_broker() -> None:
    """W23: DUPS_OK and container-managed may repeat after a crash, AUTO only the last one."""
    assert Site.listener_settings(transaction_type="bean").confirm
    assert not Site.listener_settings(transaction_type="bean", acknowledge_mode="dups_ok_acknowledge").confirm
    assert not Site.listener_settings().confirm
    assert Site.listener_settings(confirm=True).confirm


@every_mode
@pytest.mark.parametrize(
    ("spec", "confirms"),
    [
        ({"confirm": True}, True),
        ({"transaction_type": "bean", "acknowledge_mode": "auto_acknowledge"}, True),
        ({"transaction_type": "bean", "acknowledge_mode": "dups_ok_acknowledge"}, False),
        ({}, False),
    ],
    ids=["confirm", "auto", "dups_ok", "container"],
)
def test_who_confirms_waits_for_the_broker_each_time(
    site: Site, mode: dict[str, Any], spec: dict[str, Any], confirms: bool
) -> None:
    """W23: so that a crash repeats no more than the message in hand."""
    site.send(*"abcd")
    connection = ConfirmingConnection(site.broker)
    confirmed: list[int] = []
    activation = site.activation(
        lambda _: confirmed.append(connection.confirmed), connect_with=lambda: connection, **spec, **mode
    )
    assert activation.run(max_messages=4).committed == 4
    assert connection.confirmed == (4 if confirms else 0)
    if mode["concurrency_mode"] == "serial":
        assert confirmed == ([0, 1, 2, 3] if confirms else [0, 0, 0, 0])


@every_mode
def test_moved_with_what_a_dead_letter_says(site: Site, mode: dict[str, Any]) -> None:
    """J145, J149-J165, and J134: the count at which it acts."""
    site.send("a", region="eu")
    counts = site.activation(fail, redelivery_handling="3:move(queue:$.dlq)", **mode).run(idle_for=QUICK)
    assert site.attempts == [("a", 0), ("a", 1), ("a", 2)]
    (letter,) = site.broker.messages("orders.dlq")
    properties = letter.properties
    assert letter.body == "a"
    assert properties["region"] == "eu"
    assert properties["JMS_Sun_JMSJCA_RedeliveryCount"] == 3
    assert properties["JMS_Sun_JMSJCA_OriginalDestinationName"] == "orders"
    assert properties["JMS_Sun_JMSJCA_ExceptionMessage"] == "no stock"
    assert (counts.moved, counts.committed, counts.settled) == (1, 0, 1)
    assert site.broker.depth("orders") == 0


@every_mode
def test_published_vector_of_delays(site: Site, mode: dict[str, Any]) -> None:
    """J137b: 1 x 10 + 4 x 15 + 5 x 30 ms, then the move at 15."""
    site.send("a")
    began: list[float] = []
    import time  # noqa: PLC0415 - a test about time

    def timed(_: Delivery) -> None:
        began.append(time.monotonic())
        raise ValueError("always")

    handling = "5:10; 6:15; 10:30; 15:move(queue:a)"
    site.activation(timed, redelivery_handling=handling, **mode).run(max_messages=1)
    assert len(began) == 15
    assert began[-1] - began[4] >= 0.220
    assert site.bodies("a") == ["a"]


@every_mode
def test_deleted_because_the_handling_says_so(site: Site, mode: dict[str, Any]) -> None:
    """J133."""
    site.send("a")
    counts = site.activation(fail, redelivery_handling="1:delete", **mode).run(idle_for=QUICK)
    assert (counts.delivered, counts.deleted) == (1, 1)
    assert site.broker.depth("orders") == 0


@every_mode
def test_non_retryable_goes_at_once(site: Site, mode: dict[str, Any]) -> None:
    """Issue 5: poison means the dead-letter destination, without another attempt."""
    site.send("a", "b")

    def poisoned(delivery: Delivery) -> None:
        if delivery.body == "a":
            raise KeyError("unknown customer")
        raise PoisonMessageError("nonsense")

    site.activation(
        poisoned, non_retryable=["LookupError"], dead_letter_destination="queue://dead", **mode
    ).run(idle_for=QUICK)
    assert sorted(site.attempts) == [("a", 0), ("b", 0)]
    assert sorted(site.bodies("dead")) == ["a", "b"]


@every_mode
def test_a_move_that_fails_leaves_the_message_to_be_delivered(site: Site, mode: dict[str, Any]) -> None:
    """J142, J167: copied, redirected, and at last delivered."""
    site.broker.forbid(Destination.queue("dlq"))
    site.send("a")

    def fail_twice(delivery: Delivery) -> None:
        if delivery.redelivery_count < 2:
            raise ValueError("not yet")

    counts = site.activation(fail_twice, redelivery_handling="2:move(queue:dlq)", **mode).run(idle_for=QUICK)
    assert site.attempts == [("a", 0), ("a", 1), ("a", 2)]
    assert (counts.moved, counts.committed, counts.failed) == (0, 1, 2)


@every_mode
def test_redirected_unchanged(site: Site, mode: dict[str, Any]) -> None:
    """J94, J149."""
    site.send("a", region="eu")
    handling = "1:move(queue:dlq)"
    site.activation(fail, redelivery_handling=handling, redelivery_redirect=True, **mode).run(idle_for=QUICK)
    (letter,) = site.broker.messages("dlq")
    assert dict(letter.properties) == {"region": "eu"}


@every_mode
def test_what_the_handler_leaves_is_there_the_next_time(site: Site, mode: dict[str, Any]) -> None:
    """J169, J173."""
    site.send("a")
    read: list[tuple[str | None, str | None]] = []

    def leave(delivery: Delivery) -> None:
        read.append((delivery.get_string("_JMSJCA_UserRollbackDatastep"), delivery.exception_message))
        delivery.set_property("JMS_Sun_JMSJCA_UserRollbackData.step", "2")
        if delivery.redelivery_count == 0:
            raise ValueError("once")

    site.activation(leave, **mode).run(idle_for=QUICK)
    assert read == [(None, None), ("2", "once")]


@every_mode
def test_handling_for_one_message(site: Site, mode: dict[str, Any]) -> None:
    """J171: the others keep that of the activation."""
    site.send("a", "b")

    def choose(delivery: Delivery) -> None:
        if delivery.body == "a":
            delivery.redelivery_handling = "1:move(queue:special)"
            raise ValueError("special")
        if delivery.redelivery_count < 2:
            raise ValueError("usual")

    site.activation(choose, **mode).run(idle_for=QUICK)
    assert sorted(site.attempts) == [("a", 0), ("b", 0), ("b", 1), ("b", 2)]
    assert site.bodies("special") == ["a"]


def test_handling_for_one_message_that_would_have_to_be_looked_up_is_refused(site: Site) -> None:
    """J171: nothing is moved to a queue of that name."""
    site.send("a")
    said: list[str] = []

    def choose(delivery: Delivery) -> None:
        delivery.redelivery_handling = "5:move(queue:usual)"
        with pytest.raises(ConfigurationError) as caught:
            delivery.redelivery_handling = "1:move(queue:special,queue:lookup://dead)"
        said.append(str(caught.value))
        assert delivery.redelivery_handling == "5:move(queue:usual)"

    assert site.activation(choose).run(idle_for=QUICK).committed == 1
    (text,) = said
    assert "lookup://dead would have to be looked up" in text
    assert "name the destination itself" in text


def test_the_handler_stops_the_activation(site: Site) -> None:
    """J172: its own message is committed, the rest stays."""
    site.send("a", "b", "c")
    activation = site.activation(lambda delivery: delivery.stop_message_delivery("disk full"))
    activation.start()
    until(lambda: activation.stop_reason)
    assert activation.stop_reason == "disk full"
    until(lambda: site.bodies("orders") == ["b", "c"])
    assert site.got == ["a"]


@every_mode
def test_a_group_keeps_its_order(site: Site, mode: dict[str, Any]) -> None:
    """JMSXGroupID in every mode, and redelivery doesn't break it."""
    for number in range(40):
        site.send(f"{number}", JMSXGroupID=f"g{number % 3}")

    def sometimes(delivery: Delivery) -> None:
        if int(delivery.body) % 7 == 0 and delivery.redelivery_count == 0:
            raise ValueError("first time")

    site.activation(sometimes, **mode).run(idle_for=QUICK)
    for group in range(3):
        done = [
            int(body) for body, count in site.attempts if int(body) % 3 == group and (int(body) % 7 or count)
        ]
        assert done == [number for number in range(40) if number % 3 == group]


@pytest.mark.parametrize("mode", MODES[1:], ids=lambda mode: mode["concurrency_mode"])
def test_handlers_run_side_by_side_up_to_the_limit(site: Site, mode: dict[str, Any]) -> None:
    """J55, J82, J83, J117."""
    site.send(*map(str, range(9)))
    together = threading.Barrier(3, timeout=5)
    activation = site.activation(lambda _: together.wait() and None, **mode)
    counts = activation.run(max_messages=9)
    assert counts.committed == 9
    assert activation.statistics().highest_active == 3


def test_serial_and_topics_run_one_at_a_time() -> None:
    """J81, J83: several receivers would each get every message of a topic."""
    assert Site.listener_settings().delivery.concurrency == 1
    topic = Site.listener_settings(destination_type="topic", concurrency_mode="sync")
    assert (topic.delivery.concurrency, topic.receivers) == (1, 1)


@pytest.mark.parametrize(("kind", "receivers"), [("queue", 4), ("topic", 1)])
def test_sync_has_receivers_of_its_own(site: Site, kind: str, receivers: int) -> None:
    """J83, J84: on a topic each would get every message."""
    spec = {"destination_type": kind, "concurrency_mode": "sync", "endpoint_pool_max_size": 4}
    connection = LesserConnection(site.broker)
    activation = site.activation(nothing, connect_with=lambda: connection, **spec)
    activation.start()
    until(lambda: len(connection.subscribed) == receivers)
    site.send("a", "b", to=Destination(name="orders", kind=DestinationKind(kind)))
    until(lambda: activation.counts.committed == 2)
    assert len(connection.subscribed) == receivers
    assert sorted(site.got) == ["a", "b"]
    settings = activation.settings
    assert (settings.receivers, settings.delivery.concurrency) == (receivers, receivers)
    assert settings.subscription.prefetch == {"queue": 25, "topic": None}[kind]


def test_a_slow_handler_does_not_hold_up_the_others(site: Site) -> None:
    """Issue 5: cc hands what has come to whoever is free."""
    release = threading.Event()
    site.send("slow", *map(str, range(20)))

    def handle(delivery: Delivery) -> None:
        if delivery.body == "slow":
            assert release.wait(5)

    activation = site.activation(handle, concurrency_mode="cc", endpoint_pool_max_size=2)
    activation.start()
    until(lambda: activation.counts.committed == 20)
    release.set()
    until(lambda: activation.counts.committed == 21)


def test_the_pool_grows_with_work_and_shrinks_when_idle(site: Site) -> None:
    """J63, J117, W1-W3: initial and most threads, idle timeout."""
    release = threading.Event()
    activation = site.activation(
        lambda _: release.wait(5) and None,
        concurrency_mode="cc",
        endpoint_pool_max_size=4,
        endpoint_pool_steady_size=1,
        pool_idle_timeout=0.1,
    )
    activation.start()
    assert activation.statistics().threads == 1
    site.send(*map(str, range(4)))
    until(lambda: activation.statistics().active == 4)
    assert activation.statistics().threads == 4
    release.set()
    until(lambda: activation.statistics().threads == 1)
    site.send("more")
    until(lambda: activation.counts.committed == 5)


@every_mode
def test_transaction_timeout_rolls_back(site: Site, mode: dict[str, Any]) -> None:
    """W22."""
    site.send("a")

    def slow_once(delivery: Delivery) -> None:
        if delivery.redelivery_count == 0:
            threading.Event().wait(0.2)

    changes = {"transaction_timeout": timedelta(seconds=0.1)}
    activation = site.activation(slow_once, changes=changes, **mode)
    counts = activation.run(idle_for=QUICK)
    assert site.attempts == [("a", 0), ("a", 1)]
    assert (counts.rolled_back, counts.committed) == (1, 1)


def test_context_name_is_on_every_line(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """J62."""
    site.send("a")
    caplog.handler.addFilter(ContextFilter())
    caplog.set_level(logging.INFO)
    user_log = logging.getLogger("shop")
    site.activation(lambda _: user_log.info("in the handler"), context_name="Billing").run(max_messages=1)
    lines = [(record.name, record.ContextName) for record in caplog.records]  # type: ignore[attr-defined]
    wanted = [("com.stc.EnterContext", "Billing"), ("shop", "Billing"), ("com.stc.ExitContext", "Billing")]
    assert [line for line in lines if line[1]] == wanted


def test_context_name_is_on_the_lines_about_a_delivery(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """J62: whoever writes them; not on those about the connection."""
    site.broker.forbid(Destination.queue("dlq"))
    site.send("a")
    caplog.handler.addFilter(ContextFilter())
    caplog.set_level(logging.INFO)

    def said(text: str) -> bool:
        return any(text in record.getMessage() for record in caplog.records)

    def handle(delivery: Delivery) -> None:
        match delivery.redelivery_count:
            case 0:
                until(lambda: said("took too long"))
            case 1:
                delivery.redelivery_handling = "1:move(queue:dlq)"
                raise ValueError("move it")
            case 2:
                delivery.send("queue://dlq", JmsMessage.text("x"))
                delivery.redelivery_handling = "3:5000"

    changes = {"transaction_timeout": timedelta(seconds=0.1)}
    activation = site.activation(handle, context_name="Billing", changes=changes)
    activation.start()
    until(lambda: said("delayed for 5000 ms"))
    activation.stop()
    lines = {record.getMessage(): record.ContextName for record in caplog.records}  # type: ignore[attr-defined]
    of_delivery = (
        "took too long", "the handler raised", "it could not be copied", "move failed",
        "could not be committed", "delayed for 5000",
    )  # fmt: skip
    for text in of_delivery:
        assert [name for line, name in lines.items() if text in line] == ["Billing"], text
    others = [line.partition(" ")[2] for line, name in lines.items() if not name]
    assert others == [f"is connected to memory at {site.broker.name}", "message delivery stops: told to stop"]


def test_context_tells_who_where_and_how_often(site: Site) -> None:
    """W38."""
    site.send("a")
    found: list[tuple[str | None, str, int, bool]] = []

    def look(delivery: Delivery) -> None:
        context = delivery.context
        found.append((context.principal, str(context.destination), context.attempt, context.in_doubt))

    site.activation(look).run(max_messages=1)
    assert found == [("bob", "queue://orders", 1, False)]


def test_never_more_than_max_messages(site: Site) -> None:
    """Issue 5 item 12: what is rolled back isn't counted, and the rest stays on the queue."""
    site.send(*map(str, range(30)))

    def sometimes(delivery: Delivery) -> None:
        if int(delivery.body) % 2 and not delivery.redelivery_count:
            raise ValueError("first time")

    counts = site.activation(sometimes, concurrency_mode="cc", endpoint_pool_max_size=4).run(max_messages=10)
    assert counts.settled == 10
    assert site.broker.depth("orders") == 20


def test_ends_when_idle_and_after_a_time(site: Site) -> None:
    site.send("a")
    activation = site.activation(nothing)
    assert activation.run(idle_for=QUICK).committed == 1
    assert activation.stop_reason.startswith("nothing came for")
    assert activation.run(run_for=QUICK).committed == 0
    assert activation.stop_reason.startswith("it has run for")


def test_progress_is_told(site: Site) -> None:
    site.send("a", "b")
    told: list[int] = []
    site.activation(nothing).run(
        run_for=timedelta(seconds=0.3),
        progress=lambda counts: told.append(counts.committed),
        progress_every=timedelta(seconds=0.1),
    )
    assert told[-1] == 2


def test_ends_out_of_range_are_refused(site: Site) -> None:
    with pytest.raises(ConfigurationError) as refused:
        site.activation(nothing).run(max_messages=0, idle_for=timedelta(0))
    assert len(refused.value.faults) == 2


def test_statistics_under_the_keys_of_jmsjca(site: Site) -> None:
    """J121."""
    site.send("a", "b")

    def fail_b(delivery: Delivery) -> None:
        if delivery.body == "b":
            raise ValueError("b")

    activation = site.activation(fail_b, redelivery_handling="2:move(queue:dlq)")
    activation.run(max_messages=2)
    found = activation.statistics().as_map()
    assert {key: found[key] for key in ("DC", "BC", "BCSLDC", "DCSLBC", "DA", "R", "RM", "H-EP")} == {
        "DC": 1, "BC": 1, "BCSLDC": 1, "DCSLBC": 0, "DA": 3, "R": 1, "RM": 1, "H-EP": 1,
    }  # fmt: skip
    assert found["D(s0)"] == 1


def test_attempts_are_recorded_before_the_handler_is_called(site: Site) -> None:
    """DESIGN rule 2: the stored count is what the handler sees; otherwise it waits."""
    site.send("a")
    asked: list[str | None] = []

    def record(message_id: str | None) -> int:
        asked.append(message_id)
        assert site.got == []
        if len(asked) == 1:
            raise OSError("the store is away")
        return 5

    activation = site.activation(nothing, changes={"record_attempts": True}, record=record)
    activation.run(max_messages=1)
    assert site.attempts == [("a", 4)]
    assert asked == [asked[0], asked[0]]


def test_recording_needs_something_to_record_with(site: Site) -> None:
    with pytest.raises(ConfigurationError, match="record_attempts"):
        site.activation(nothing, changes={"record_attempts": True})
