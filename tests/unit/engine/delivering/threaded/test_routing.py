"""The destinations of the WBIA adapter: archive, error, unsubscribed, source, reply-to; what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.settings import ListenerContext, listener_settings
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.dead_letters import original_of
from tests.unit.engine.brokers import LesserConnection
from tests.unit.engine.listening import QUICK, Site, every_mode, fail, nothing, until


@every_mode
@pytest.mark.parametrize("confirm_acknowledgements", [False, True])
def test_the_archive_gets_a_copy_of_each_success(
    site: Site, mode: dict[str, Any], confirm_acknowledgements: bool
) -> None:
    """I26: unchanged, and of successes only."""
    site.send("a", region="eu")
    site.send("bad")

    def fail_bad(delivery: Delivery) -> None:
        if delivery.body == "bad":
            raise ValueError("no stock")

    counts = site.activation(
        fail_bad,
        confirm_acknowledgements=confirm_acknowledgements,
        archive_destination="queue://done",
        redelivery_handling="1:move(queue:dlq)",
        **mode,
    ).run(idle_for=QUICK)
    (copy,) = site.broker.messages("done")
    assert (copy.body, dict(copy.properties)) == ("a", {"region": "eu"})
    assert (counts.committed, counts.moved) == (1, 1)
    assert site.bodies("dlq") == ["bad"]


def test_the_copy_is_part_of_the_commit(site: Site) -> None:
    """I26, J123: where it is refused, what the handler sent isn't sent and the message comes again."""
    site.broker.forbid(Destination.queue("done"))
    site.send("a")

    def forward(delivery: Delivery) -> None:
        delivery.send("queue://out", JmsMessage.text("x"))
        if delivery.redelivery_count == 1:
            assert site.bodies("out") == []
            site.broker.permit(Destination.queue("done"))

    counts = site.activation(forward, archive_destination="queue://done").run(max_messages=1)
    assert (counts.failed, counts.committed, counts.delivered) == (1, 1, 2)
    assert (site.bodies("done"), site.bodies("out")) == (["a"], ["x"])


def test_a_batch_is_archived_with_its_commit(site: Site) -> None:
    """I26, J183."""
    site.send("a", "b", "c")
    site.activation(
        nothing, archive_destination="done", batch_size=3, concurrency_mode="cc", endpoint_pool_max_size=1
    ).run(max_messages=3)
    assert site.bodies("done") == ["a", "b", "c"]


class Narrow(LesserConnection):
    """Takes nothing wide into the archive."""

    def unit(self) -> Any:
        inner: Any = super().unit()
        send = inner.send

        def narrow(outgoing: Outgoing) -> None:
            if outgoing.destination.name == "done" and outgoing.message.body == "wide":
                raise ConfigurationError("the property 'x' has 40000 characters; the broker takes 32766")
            send(outgoing)

        inner.send = narrow
        return inner


@every_mode
def test_a_copy_that_is_refused_leaves_its_message_to_the_redelivery_handling(
    site: Site, mode: dict[str, Any]
) -> None:
    """It isn't part of a unit of work for ever, that nobody commits."""
    site.send("wide", "next")
    activation = site.activation(
        nothing,
        connect_with=lambda: Narrow(site.broker),
        archive_destination="queue://done",
        redelivery_handling="3:move(queue:dlq)",
        **mode,
    )
    counts = activation.run(max_messages=2, run_for=timedelta(seconds=5))
    assert (counts.committed, counts.moved, counts.failed) == (1, 1, 3)
    assert (site.bodies("done"), site.bodies("dlq"), site.bodies("orders")) == (["next"], ["wide"], [])


def test_a_batch_whose_copy_is_refused_blocks_nothing(site: Site) -> None:
    site.send("wide", "next")
    activation = site.activation(
        nothing,
        connect_with=lambda: Narrow(site.broker),
        archive_destination="queue://done",
        redelivery_handling="2:move(queue:dlq)",
        concurrency_mode="cc",
        endpoint_pool_max_size=1,
        batch_size=2,
    )
    activation.start()
    until(lambda: activation.counts.moved == 2)
    site.send("later", "last")
    until(lambda: activation.counts.committed == 2)
    assert activation.stop(timedelta(seconds=5))
    assert (site.bodies("done"), site.bodies("orders")) == (["later", "last"], [])


@every_mode
def test_with_an_error_destination_the_first_failure_is_final(site: Site, mode: dict[str, Any]) -> None:
    """I28, I29: nothing said about redelivery, so the adapter's own rule holds; the copy says why."""
    site.send("a")
    counts = site.activation(fail, error_destination="queue://errors", **mode).run(idle_for=QUICK)
    assert (counts.delivered, counts.moved) == (1, 1)
    (message,) = site.broker.messages("errors")
    letter = original_of(message)
    assert letter is not None
    assert letter.state.failure is not None
    assert letter.state.failure.message == "no stock"


def test_an_outage_is_no_failure(site: Site) -> None:
    """I7, I28: a message that comes again because of one is delivered again."""
    site.send("a")

    def kill_once(_: Delivery) -> None:
        if len(site.got) == 1:
            site.broker.restart()

    counts = site.activation(kill_once, error_destination="errors").run(max_messages=1)
    assert (site.got, counts.committed, site.bodies("errors")) == (["a", "a"], 1, [])


def test_redelivery_handling_goes_before_the_error_destination(site: Site) -> None:
    """I28: what is said about redelivery holds; what it would delete goes to the error destination."""
    site.send("a")
    activation = site.activation(fail, error_destination="errors", redelivery_handling="3:delete")
    counts = activation.run(idle_for=QUICK)
    assert (counts.delivered, counts.moved, counts.deleted) == (3, 1, 0)
    assert site.bodies("errors") == ["a"]


def test_poison_goes_to_both(site: Site) -> None:
    """I28, P9: a dead-letter destination beside it gets the message too."""
    site.send("a")
    site.activation(
        fail,
        error_destination="errors",
        dead_letter_destination="dlq",
        redelivery_handling="9:delete",
        non_retryable="ValueError",
    ).run(max_messages=1)
    assert (site.bodies("errors"), site.bodies("dlq")) == (["a"], ["a"])


@every_mode
def test_what_the_selector_rejects_is_unsubscribed(site: Site, mode: dict[str, Any]) -> None:
    """I30: it doesn't stay in the queue; the copy says where it was."""
    site.send("a", region="eu")
    site.send("b", region="us")
    counts = site.activation(
        nothing, message_selector="region = 'eu'", unsubscribed_destination="queue://others", **mode
    ).run(idle_for=QUICK)
    assert site.got == ["a"]
    assert (counts.delivered, counts.committed, counts.moved) == (1, 1, 1)
    (message,) = site.broker.messages("others")
    letter = original_of(message)
    assert letter is not None
    assert (letter.message.body, letter.origin.destination) == ("b", Destination.queue("orders"))
    assert site.broker.depth("orders") == 0


@every_mode
def test_what_cannot_be_moved_after_all_attempts_stays_and_is_not_delivered(
    site: Site, mode: dict[str, Any]
) -> None:
    """P15, P16: tried once more, a second later; those behind it go on. The next run tries again."""
    dlq = Destination.queue("dlq")
    site.broker.forbid(dlq)
    site.send("bad", "a")

    def fail_bad(delivery: Delivery) -> None:
        if delivery.body == "bad":
            raise ValueError("no stock")

    spec = {"max_attempts": 2, "dead_letter_destination": "dlq", "limbo_delivery_retry": 1} | mode
    counts = site.activation(fail_bad, **spec).run(max_messages=1, run_for=100 * QUICK)
    assert sorted(site.got) == ["a", "bad", "bad"]
    assert (counts.committed, counts.moved, site.bodies("orders")) == (1, 0, ["bad"])
    site.broker.permit(dlq)
    assert site.activation(fail_bad, **spec).run(max_messages=1).moved == 1
    assert (site.bodies("orders"), site.bodies("dlq")) == ([], ["bad"])


def test_an_unsubscribed_message_that_cannot_be_moved_is_not_delivered(site: Site) -> None:
    """I30: it stays, and those behind it go on."""
    site.broker.forbid(Destination.queue("others"))
    site.send("b", region="us")
    site.send("a", region="eu")
    counts = site.activation(
        nothing, message_selector="region = 'eu'", unsubscribed_destination="others"
    ).run(max_messages=1)
    assert (site.got, counts.committed) == (["a"], 1)
    assert site.bodies("orders") == ["b"]


def test_subscribes_rejects(site: Site) -> None:
    """I30: with the selector; what raises is poison and not rejected."""
    site.send("wanted", "other", "broken")

    def subscribes(message: JmsMessage) -> bool:
        if message.body == "broken":
            raise ValueError("no such type")
        return message.body == "wanted"

    activation = site.activation(
        nothing, subscribes=subscribes, unsubscribed_destination="others", dead_letter_destination="dlq"
    )
    assert activation.run(idle_for=QUICK).settled == 3
    assert (site.got, site.bodies("others"), site.bodies("dlq")) == (["wanted"], ["other"], ["broken"])


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (
            {"unsubscribed_destination": "others"},
            r"unsubscribed_destination: got queue://others, but nothing rejects",
        ),
        (
            {"archive_destination": "queue://orders"},
            r"archive_destination: got queue://orders, which is consumed",
        ),
        (
            {"error_destination": "queue://orders"},
            r"error_destination: got queue://orders, which is consumed",
        ),
        (
            {"dead_letter_destination": ["queue://dlq", "queue://orders"]},
            r"dead_letter_destination: got queue://orders, which is consumed",
        ),
        (
            {"destination": ["queue://orders", "queue://b"], "dead_letter_destination": "queue://b"},
            r"dead_letter_destination: got queue://b, which is consumed",
        ),
        (
            {"container_managed_events": "jms", "source_queue": "queue://orders"},
            r"source_queue: got queue://orders, which is consumed",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(spec: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        Site.listener_settings(**spec)


def test_subscribes_needs_somewhere_for_the_rest() -> None:
    """I30: the adapter discards; we do nothing of the kind unasked."""
    with pytest.raises(ConfigurationError, match="unsubscribed_destination: missing"):
        listener_settings(
            ActivationSpec(destination="queue://orders"), ListenerContext(subscribes=lambda _: True)
        )


@every_mode
@pytest.mark.parametrize("confirm_acknowledgements", [False, True])
def test_container_managed_events_go_on_to_the_source_queue(
    site: Site, mode: dict[str, Any], confirm_acknowledgements: bool
) -> None:
    """I15, I16: unchanged, with the commit; what fails doesn't go on; the archive gets its copy too."""
    site.send("a", region="eu")
    site.send("bad")

    def fail_bad(delivery: Delivery) -> None:
        if delivery.body == "bad":
            raise ValueError("no stock")

    counts = site.activation(
        fail_bad,
        confirm_acknowledgements=confirm_acknowledgements,
        container_managed_events="jms",
        source_queue="ADAPTER/SOURCEQUEUE",
        archive_destination="done",
        redelivery_handling="1:move(queue:dlq)",
        **mode,
    ).run(idle_for=QUICK)
    (event,) = site.broker.messages("ADAPTER/SOURCEQUEUE")
    assert (event.body, dict(event.properties)) == ("a", {"region": "eu"})
    assert (site.bodies("done"), site.bodies("dlq")) == (["a"], ["bad"])
    assert (counts.committed, counts.moved) == (1, 1)


def test_an_event_passes_in_one_transaction(site: Site) -> None:
    """I16: where the source queue refuses it, it stays in its destination and comes again."""
    source = Destination.queue("source")
    site.broker.forbid(source)
    site.send("a")

    def permit_later(delivery: Delivery) -> None:
        assert site.bodies("source") == []
        if delivery.redelivery_count == 1:
            site.broker.permit(source)

    counts = site.activation(permit_later, container_managed_events="jms", source_queue="queue://source").run(
        max_messages=1
    )
    assert (counts.failed, counts.committed, site.bodies("source")) == (1, 1, ["a"])
    assert site.broker.depth("orders") == 0


def test_a_source_queue_alone_gets_nothing(site: Site) -> None:
    """I16, I48: its default is in every configuration of the adapter."""
    site.send("a")
    site.activation(nothing, source_queue="queue://source").run(max_messages=1)
    assert site.bodies("source") == []


def test_an_answer_says_what_became_of_the_request(site: Site) -> None:
    """I45, I46."""
    site.send("no stock", outcome="FAIL")
    site.send("", outcome="SUCCESS")
    found: list[object] = []
    site.activation(
        lambda delivery: found.append((delivery.response.failed, delivery.response.error)),
        message_response_result_property="outcome",
    ).run(max_messages=2)
    assert found == [(True, "no stock"), (False, None)]


def test_without_the_property_named_there_are_no_answers(site: Site) -> None:
    """I45."""
    site.send("a")
    refused: list[str] = []

    def ask(delivery: Delivery) -> None:
        try:
            _ = delivery.response
        except ConfigurationError as error:
            refused.append(str(error))

    site.activation(ask).run(max_messages=1)
    assert refused == [
        "message_response_result_property: missing, expected the property that holds the result"
    ]


@pytest.mark.parametrize("transaction_type", ["container", "bean"])
def test_answers_go_where_the_activation_says(site: Site, transaction_type: str) -> None:
    """I39: it fills the header of what has none."""
    site.send("a")

    def ask(delivery: Delivery) -> None:
        delivery.send("queue://stock", JmsMessage.text("how many?"))
        own = JmsMessage.text("who?", reply_to=Destination.topic("mine"))
        delivery.send("queue://stock", own)

    site.activation(ask, reply_to_destination="answers", transaction_type=transaction_type).run(
        max_messages=1
    )
    assert [message.reply_to for message in site.broker.messages("stock")] == [
        Destination.queue("answers"),
        Destination.topic("mine"),
    ]


def test_defaults_and_what_has_no_meaning_here_are_accepted() -> None:
    plain = Site.listener_settings()
    found = Site.listener_settings(
        distributed_destination_connection="local_only",
        locator_class="x.Y",
    )
    assert replace(found, spec=plain.spec) == plain
