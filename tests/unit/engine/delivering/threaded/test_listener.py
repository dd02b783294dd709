"""The listener over a broker of this process: settling, what is sent along, contexts, ends."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.delivering.delivery import ContextFilter, Delivery
from airflow_provider_jmsjca.engine.delivering.statistics import Counters
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Subscription
from tests.unit.engine.brokers import ConfirmingConnection
from tests.unit.engine.listening import ORDERS, QUICK, Site, every_mode, fail, nothing, until


@every_mode
def test_what_the_handler_returns_from_is_settled(site: Site, mode: dict[str, Any]) -> None:
    """J81, J82, J83."""
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
    assert isinstance(message, Delivery)
    assert message.get_object("JMSJCA.setRollbackOnly") is False


def test_serial_keeps_the_order(site: Site) -> None:
    """W34, J81."""
    site.send(*map(str, range(200)))
    site.activation(nothing).run(max_messages=200)
    assert site.got == [str(number) for number in range(200)]


@every_mode
def test_an_exception_rolls_back_and_the_message_is_delivered_again(site: Site, mode: dict[str, Any]) -> None:
    """C1, P4, W9, J129, J130, J170, W36: counted from the second sighting."""
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
    said: list[bool] = []

    def once(delivery: Delivery) -> None:
        if delivery.redelivery_count == 0:
            delivery.context.set_rollback_only()
        said.append(delivery.context.rollback_only)

    counts = site.activation(once, **mode).run(idle_for=QUICK)
    assert said == [True, False]
    assert site.attempts == [("a", 0), ("a", 1)]
    assert (counts.committed, counts.rolled_back) == (1, 1)


@every_mode
def test_what_is_sent_goes_with_the_commit(site: Site, mode: dict[str, Any]) -> None:
    """J22, J28, P1, J123, J127: not with the rollback."""
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


@pytest.mark.parametrize(
    "without",
    [
        {"transaction_type": "bean"},
        {"options": "JMSJCA.ForceBMT=true"},
        {"transaction_attribute": "not_supported"},
    ],
    ids=["bean", "force", "not supported"],
)
def test_without_a_transaction_it_sends_at_once(site: Site, without: dict[str, str]) -> None:
    """J22, J105, J127, W21, W23: a rollback doesn't take it back."""
    site.send("a")

    def forward(delivery: Delivery) -> None:
        delivery.send("queue://shipped", JmsMessage.text("x"))
        if delivery.redelivery_count == 0:
            delivery.context.set_rollback_only()

    counts = site.activation(forward, **without).run(idle_for=QUICK)
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
    assert Site.listener_settings(transaction_type="bean").confirm_acknowledgements
    assert not Site.listener_settings(
        transaction_type="bean", acknowledge_mode="dups_ok_acknowledge"
    ).confirm_acknowledgements
    assert not Site.listener_settings().confirm_acknowledgements
    assert Site.listener_settings(confirm_acknowledgements=True).confirm_acknowledgements


@every_mode
@pytest.mark.parametrize(
    ("spec", "confirms"),
    [
        ({"confirm_acknowledgements": True}, True),
        ({"transaction_type": "bean", "acknowledge_mode": "auto_acknowledge"}, True),
        ({"transaction_type": "bean", "acknowledge_mode": "dups_ok_acknowledge"}, False),
        ({}, False),
    ],
    ids=["confirm_acknowledgements", "auto", "dups_ok", "container"],
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
def test_transaction_timeout_rolls_back(site: Site, mode: dict[str, Any]) -> None:
    """W22."""
    site.send("a")

    def slow_once(delivery: Delivery) -> None:
        if delivery.redelivery_count == 0:
            threading.Event().wait(0.6)

    changes = {"transaction_timeout": timedelta(seconds=0.5)}
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
                until(lambda: said("took longer than transaction_timeout"))
            case 1:
                delivery.redelivery_handling = "1:move(queue:dlq)"
                raise ValueError("move it")
            case 2:
                delivery.send("queue://dlq", JmsMessage.text("x"))
                delivery.redelivery_handling = "3:5000"

    changes = {"transaction_timeout": timedelta(seconds=0.5)}
    activation = site.activation(handle, context_name="Billing", changes=changes)
    activation.start()
    until(lambda: said("delayed for 5000 ms"))
    activation.stop()
    lines = {record.getMessage(): record.ContextName for record in caplog.records}  # type: ignore[attr-defined]
    of_delivery = (
        "took longer than transaction_timeout", "the handler raised", "it could not be copied", "move failed",
        "could not be committed", "delayed for 5000",
    )  # fmt: skip
    for text in of_delivery:
        assert [name for line, name in lines.items() if text in line] == ["Billing"], text
    others = [line.partition(" ")[2] for line, name in lines.items() if not name]
    assert others == [
        f"is consuming from memory at {site.broker.name}",
        "message delivery stops: told to stop",
    ]


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
    """What is rolled back isn't counted, and the rest stays on the queue."""
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
    """J121: the catalogue's keys, all of them."""
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
    assert set(found) == {
        "DC", "BC", "BCSLDC", "DCSLBC", "DA", "R", "RM", "A-EP", "H-EP", "EP", "D(s0)", "t(s0)",
    }  # fmt: skip
    assert (found["A-EP"], found["D(s0)"]) == (0, 1)
    assert 0 <= found["t(s0)"] < 60


def test_counts_since_the_last_of_the_other_kind_and_the_times_of_samples_j121() -> None:
    """J121: a commit resets BCSLDC, a move or deletion DCSLBC; samples at 1, 1,000 and 10,000 deliveries."""
    counters = Counters()
    counters.began = 100.0
    since = []
    for committed, moved, deleted in ((2, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0)):
        counters.committed += committed
        if moved or deleted:
            counters.bypass(moved=moved, deleted=deleted)
        found = counters.statistics(threads=1, in_flight=0).as_map()
        since.append((found["DCSLBC"], found["BCSLDC"]))
    assert since == [(2, 0), (0, 1), (0, 2), (1, 0)]
    for number in range(10_000):
        counters.deliver(0, 101.0 + number)
        counters.active -= 1
    found = counters.statistics(threads=1, in_flight=0).as_map()
    samples = [(found[f"D(s{number})"], found[f"t(s{number})"]) for number in range(3)]
    assert samples == [(1, 1.0), (1_000, 1_000.0), (10_000, 10_000.0)]
    assert "D(s3)" not in found


def test_recording_needs_something_to_record_with(site: Site) -> None:
    with pytest.raises(ConfigurationError, match="record_attempts"):
        site.activation(nothing, changes={"record_attempts": True})


@pytest.mark.parametrize("before", [0, 1])
def test_the_first_failure_here_stands_in_the_log_with_its_traceback(
    site: Site, caplog: pytest.LogCaptureFixture, before: int
) -> None:
    """Also of a message that another process had before."""
    site.send("a")
    held: list[Any] = []
    for _ in range(before):
        connection = connect(site.settings)
        connection.consume(Subscription(destination=ORDERS), held.append)
        until(lambda: held)
        held.clear()
        connection.close()
    counts = site.activation(fail, redelivery_handling=f"{before + 3}:delete").run(
        idle_for=QUICK, run_for=timedelta(seconds=5)
    )
    assert counts.deleted == 1
    raised = [each for each in caplog.records if "the handler raised" in each.getMessage()]
    assert [each.exc_info is not None for each in raised] == [True] + [False] * (len(raised) - 1)
    assert len(raised) == 3


def test_a_delivery_is_sent_on_as_it_was_received(site: Site) -> None:
    site.send("a", region="eu")
    site.activation(lambda delivery: delivery.send("queue://next", delivery)).run(max_messages=1)
    (sent,) = site.broker.messages("next")
    assert (sent.body, sent.properties["region"], sent.destination) == ("a", "eu", Destination.queue("next"))
