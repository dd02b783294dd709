"""Dead letters arrive: also when their time is over, also when they can't be copied whole."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_jmsjca import (
    ConnectionSettings,
    Delivery,
    Destination,
    JmsConnection,
    JmsMessage,
    Manifest,
    MoveTarget,
    Outgoing,
    RejectedMessage,
    connect,
    open_store,
)
from tests.broker.listening import activation, bodies, drained, idle, send
from tests.broker.test_stomp_traps import raw_send
from tests.dead_letters import original_of
from tests.internals.spark import send_dead_letters
from tests.internals.transports import ArtemisDialect
from tests.servers.broker import Broker

SOON = timedelta(seconds=10)
LEFT_OUT = "JMS_Sun_JMSJCA_LeftOut"
EXPIRATION = "JMS_Sun_JMSJCA_OriginalJMSExpiration"


def only_poison(queue: str) -> dict[str, Any]:
    """Have what raises moved to a queue, and nothing that only comes again."""
    target = f"queue://{queue}"
    return {
        "redelivery_handling": "1:5",
        "non_retryable": ["ValueError"],
        "dead_letter_destination": target,
    }


def expiring(settings: ConnectionSettings, queue: str, body: str) -> int:
    """Send a message that lives for a second; return when it ends."""
    expiration = int(time.time() * 1000) + 1_000
    message = JmsMessage.text(body, expiration=expiration)
    with contextlib.closing(connect(settings)) as connection:
        connection.send([Outgoing(destination=Destination.queue(queue), message=message)])
    return expiration


def test_messages_that_only_waited_in_a_stopped_process_are_no_attempts_with_a_store(
    activemq: Broker, queue_name: str, tmp_path: Path
) -> None:
    """The broker flags what it had sent, and without a store the flag is all that a new process knows."""
    settings, handled = activemq.settings(), list[Any]()
    send(settings, queue_name, *map(str, range(20)))
    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/store.db")) as store:
        for how_long in ({"max_messages": 1}, {"idle_for": idle()}):
            activation(
                settings,
                queue_name,
                lambda delivery: handled.append(delivery.body),
                store=store,
                use_store=True,
                max_attempts=1,
                dead_letter_destination="queue://$.dlq",
            ).run(**how_long)  # type: ignore[arg-type]
    assert sorted(handled, key=int) == [str(number) for number in range(20)]
    assert bodies(settings, f"{queue_name}.dlq") == []


@pytest.mark.parametrize("redirect", [False, True], ids=["copied", "redirected"])
def test_a_message_whose_time_is_over_is_moved_and_stays_there(
    broker: Broker, queue_name: str, *, redirect: bool
) -> None:
    settings = broker.settings()
    expiration = expiring(settings, queue_name, "late")

    def outlive(_: Delivery) -> None:
        time.sleep(max(0.0, expiration / 1000 - time.time()) + 0.1)
        raise ValueError("no stock")

    listener = activation(
        settings,
        queue_name,
        outlive,
        redelivery_handling="1:move(queue:$.dlq)",
        redelivery_redirect=redirect,
        non_retryable=["ValueError"],
        dead_letter_destination=f"queue://{queue_name}.dlq",
    )
    assert listener.run(max_messages=1, run_for=SOON).moved == 1
    (message,) = drained(settings, f"{queue_name}.dlq")
    assert (message.body, message.expiration) == ("late", 0)
    assert int(str(message.properties[EXPIRATION])) == expiration
    letter = original_of(message)
    assert (letter is None) is redirect
    assert letter is None or letter.message.expiration == expiration


def test_an_archived_message_whose_time_is_over_stays_in_the_archive(broker: Broker, queue_name: str) -> None:
    settings = broker.settings()
    expiration = expiring(settings, queue_name, "late")
    listener = activation(
        settings,
        queue_name,
        lambda _: time.sleep(max(0.0, expiration / 1000 - time.time()) + 0.1),
        archive_destination=f"queue://{queue_name}.archive",
    )
    assert listener.run(max_messages=1, run_for=SOON).committed == 1
    assert bodies(settings, f"{queue_name}.archive") == ["late"]


@pytest.mark.parametrize("redirect", [False, True], ids=["copied", "redirected"])
def test_what_cannot_be_copied_whole_goes_with_a_part_and_those_behind_it_go_on(
    broker: Broker, queue_name: str, *, redirect: bool
) -> None:
    """Over a serial listener: a property of 10,100 characters, 985 headers, a header without a name."""
    settings = broker.settings()
    with contextlib.closing(connect(settings)) as connection:
        product = connection.broker.product
    name = queue_name if product == "artemis" else f"/queue/{queue_name}"
    usual = (f"destination:{name}", "destination-type:ANYCAST", "persistent:true")
    send(settings, queue_name, "good")
    raw_send(broker, *usual, f"huge:{'x' * 10_100}", "bad:1")
    raw_send(broker, *usual, *(f"p{number}:v" for number in range(985)), "bad:2")
    if product != "activemq":  # which takes no header without a name
        raw_send(broker, *usual, ":nameless", "bad:3")
    send(settings, queue_name, "good", "good")
    got: list[Any] = []

    def handle(delivery: Delivery) -> None:
        if "bad" in delivery.properties:
            raise ValueError("no stock")
        got.append(delivery.body)

    listener = activation(
        settings,
        queue_name,
        handle,
        redelivery_handling="1:move(queue:$.dlq)",
        redelivery_redirect=redirect,
    )
    counts = listener.run(idle_for=idle())
    found = {
        str(message.properties.get("bad")): message for message in drained(settings, f"{queue_name}.dlq")
    }
    assert sorted(found) == (["1", "2"] if product == "activemq" else ["1", "2", "3"])
    assert (counts.committed, counts.moved, got) == (3, len(found), ["good"] * 3)
    if product == "activemq":
        assert found["1"].properties[LEFT_OUT] == "shortened: 'huge'"
        assert len(str(found["1"].properties["huge"])) <= 9_000
        assert redirect or "left out:" in str(found["2"].properties[LEFT_OUT])
    else:
        assert LEFT_OUT not in found["1"].properties
        assert found["3"].properties[LEFT_OUT] == "left out: ''"
    assert redirect or original_of(found["2"]) is not None
    assert bodies(settings, queue_name) == []


def test_a_dead_letter_over_which_the_broker_hangs_up_goes_with_a_part(
    artemis: Broker, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its limits are narrower than this package knows: those behind it go on."""
    monkeypatch.setattr(ArtemisDialect, "check_headers", lambda *_: None)
    settings = artemis.settings()
    send(settings, queue_name, "bad", **{f"p{number}": "x" * 41_000 for number in range(6)})
    send(settings, queue_name, "good", "good")

    def handle(delivery: Delivery) -> None:
        if delivery.body == "bad":
            raise ValueError("no stock" * 2_000)

    listener = activation(settings, queue_name, handle, **only_poison(f"{queue_name}.dlq"))
    counts = listener.run(max_messages=3, run_for=timedelta(seconds=60))
    assert (counts.committed, counts.moved) == (2, 1)
    (message,) = drained(settings, f"{queue_name}.dlq")
    assert str(message.properties[LEFT_OUT]).startswith("shortened: 'p")
    assert (letter := original_of(message)) is not None
    assert letter.state.failure is not None
    assert bodies(settings, queue_name) == []


@pytest.mark.parametrize(
    ("broker", "refused"),
    [("artemis", "forbidden.queue"), ("rabbitmq", "amq.forbidden")],
    indirect=["broker"],
)
def test_a_dead_letter_that_no_way_helps_holds_up_nobody(
    broker: Broker, refused: str, queue_name: str
) -> None:
    """These brokers close the connection over it: in a serial listener those behind it go on, it stays."""
    settings = broker.settings()
    send(settings, queue_name, "bad", "good", "good")

    def handle(delivery: Delivery) -> None:
        if delivery.body == "bad":
            raise ValueError("no stock")

    listener = activation(settings, queue_name, handle, **only_poison(refused))
    counts = listener.run(max_messages=2, run_for=timedelta(seconds=60))
    assert (counts.committed, counts.moved) == (2, 0)
    assert bodies(settings, queue_name) == ["bad"]


@pytest.mark.parametrize(
    ("broker", "huge"),
    [("activemq", {"huge": "x" * 10_100}), ("artemis", {f"huge{at}": "x" * 45_000 for at in range(6)})],
    indirect=["broker"],
    ids=["said", "closed"],
)
def test_those_that_a_job_turned_away_go_with_a_part_too(
    broker: Broker, huge: dict[str, str], queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them held up all others of its 500; also where the broker hangs up over it."""
    monkeypatch.setattr(ArtemisDialect, "check_headers", lambda *_: None)
    rejected = [
        RejectedMessage(
            number=number,
            message=JmsMessage.text(body, huge if body == "bad" else {}),
            exception_class="E",
            exception_message=f"no row, said {broker.password}",
        )
        for number, body in enumerate(("a", "bad", "b"))
    ]
    monkeypatch.setattr("airflow_provider_jmsjca.spark.dead_letters.rejected_messages", lambda _: rejected)
    manifest = SimpleNamespace(folder=tmp_path, source=f"queue://{queue_name}", batch_id="b")
    target = Destination.queue(f"{queue_name}.dlq")

    def opened() -> JmsConnection:
        return JmsConnection(connect(broker.settings()))

    assert send_dead_letters(opened, cast("Manifest", manifest), MoveTarget.of(target)) == 3
    found = drained(broker.settings(), target.name)
    # Where sends are confirmed one by one, those behind the refused one are there before it.
    parts = {message.body: str(message.properties.get(LEFT_OUT))[:14] for message in found}
    assert parts == {"a": "None", "bad": "shortened: 'hu", "b": "None"}
    for message in found:
        letter = original_of(message)
        assert letter is not None
        assert letter.state.failure is not None
        assert letter.state.failure.message == "no row, said ***"
