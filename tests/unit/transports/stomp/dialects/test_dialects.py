"""What each dialect writes, and how it reads what the brokers were seen to write."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import BodyKind, JmsMessage
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError, PoisonMessageError
from airflow_provider_jmsjca.transports.base import BrokerInfo, Outgoing, Subscription
from airflow_provider_jmsjca.transports.stomp.dialects.activemq import ActiveMqDialect
from airflow_provider_jmsjca.transports.stomp.dialects.artemis import ArtemisDialect
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import (
    Dialect,
    consumer_headers,
    producer_headers,
)
from airflow_provider_jmsjca.transports.stomp.dialects.generic import GenericDialect
from airflow_provider_jmsjca.transports.stomp.dialects.rabbitmq import RabbitMqDialect
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame

ACTIVEMQ, ARTEMIS, RABBITMQ, GENERIC = (
    ActiveMqDialect(),
    ArtemisDialect(),
    RabbitMqDialect(),
    GenericDialect(),
)
SCHEDULE = ("CRON", "DELAY", "PERIOD", "REPEAT")
ALL = [ACTIVEMQ, ARTEMIS, RABBITMQ, GENERIC]
BROKER = BrokerInfo(product="tested", version="1", address="host:1")
QUEUE, TOPIC = Destination.queue("orders"), Destination.topic("news")
ON_QUEUE, ON_TOPIC = Subscription(destination=QUEUE), Subscription(destination=TOPIC)
every_dialect = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.product)


def sent(
    dialect: Dialect, message: JmsMessage, to: Destination = QUEUE, **outgoing: Any
) -> tuple[list[str], bytes]:
    frame = dialect.encode(Outgoing(destination=to, message=message, **outgoing), lambda: "ID:1")
    head, _, body = frame.partition(b"\n\n")
    assert body.endswith(b"\0")
    return head.decode().split("\n"), body[:-1]


def came(dialect: Dialect, head: str, body: bytes = b"", subscription: Subscription = ON_QUEUE) -> JmsMessage:
    lines = "".join(f"\n{line}" for line in head.split("|"))
    frame = Frame(b"MESSAGE", lines.encode(), body)
    return dialect.decode(frame, frame.headers(), subscription)


# --- out


def test_text_to_activemq_has_no_length_so_that_it_stays_text() -> None:
    head, body = sent(ACTIVEMQ, JmsMessage.text("Grüße 🎉", {"region": "e:u"}))
    assert head == ["SEND", "destination:/queue/orders", "persistent:true", "region:e\\cu"]
    assert body == "Grüße 🎉".encode()


def test_text_with_nul_to_activemq() -> None:
    head, body = sent(ACTIVEMQ, JmsMessage.text("a\0b"))
    assert head[3:] == ["amq-msg-type:text", "content-length:3"]
    assert body == b"a\0b"


def test_bytes_to_activemq() -> None:
    head, body = sent(ACTIVEMQ, JmsMessage.bytes(b"\0\1"), to=TOPIC)
    assert head == ["SEND", "destination:/topic/news", "persistent:true", "content-length:2"]
    assert body == b"\0\1"


def test_a_group_on_activemq_is_repeated_where_consumers_see_it() -> None:
    head, _ = sent(ACTIVEMQ, JmsMessage.text("x", {"JMSXGroupID": "g"}))
    assert head[3:] == ["JMSXGroupID:g", "JMS_JMSJCA_Property_JMSXGroupID:g"]


def test_artemis_is_always_told_the_routing_type() -> None:
    assert "destination-type:ANYCAST" in sent(ARTEMIS, JmsMessage.text("x"))[0]
    head, _ = sent(ARTEMIS, JmsMessage.text("x"), to=TOPIC)
    assert head[:3] == ["SEND", "destination:news", "persistent:true"]
    assert "destination-type:MULTICAST" in head


def test_deduplication_on_artemis() -> None:
    head, _ = sent(ARTEMIS, JmsMessage.text("x"), deduplication_id="17>queue")
    assert "_AMQ_DUPL_ID:17>queue" in head


def test_rabbitmq_gets_an_id_and_the_kind() -> None:
    head, body = sent(RABBITMQ, JmsMessage.text("ü"))
    assert head[:4] == ["SEND", "destination:/queue/orders", "persistent:true", "amqp-message-id:ID\\c1"]
    assert head[4].startswith("timestamp:")
    assert head[5:] == ["content-type:text/plain;charset=utf-8", "content-length:2"]
    assert body == b"\xc3\xbc"


def test_rabbitmq_gets_the_id_that_the_sender_wants() -> None:
    head, _ = sent(RABBITMQ, JmsMessage.text("x"), message_id="limbo/1:2")
    assert head[3] == "amqp-message-id:limbo/1\\c2"


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        (JmsMessage.bytes(b"x"), []),
        (JmsMessage.text("x"), ["content-type:text/plain"]),
        (JmsMessage.empty(), ["JMS_JMSJCA_BodyKind:empty"]),
        (
            JmsMessage(body_kind=BodyKind.TEXT, body="{}", properties={"content-type": "application/x"}),
            ["content-type:application/x", "JMS_JMSJCA_BodyKind:text"],
        ),
        (
            JmsMessage(body_kind=BodyKind.BYTES, body=b"x", properties={"content-type": "text/csv"}),
            ["content-type:text/csv", "JMS_JMSJCA_BodyKind:bytes"],
        ),
        (
            JmsMessage(body_kind=BodyKind.TEXT, body="x", properties={"content-type": "text/plain"}),
            ["content-type:text/plain", "JMS_JMSJCA_BodyKind:text"],
        ),
    ],
)
def test_rabbitmq_keeps_the_kind_whatever_the_content_type(message: JmsMessage, lines: list[str]) -> None:
    head, body = sent(RABBITMQ, message)
    assert head[5:-1] == lines
    came_back = came(RABBITMQ, "|".join(head[1:]), body)
    assert (came_back.body_kind, came_back.body) == (message.body_kind, message.body)
    assert came_back.properties == message.properties


def test_rabbitmq_escapes_slashes_in_queue_names() -> None:
    assert RABBITMQ.destination(Destination.queue("a/b")) == "/queue/a%2Fb"


@every_dialect
def test_standard_headers(dialect: Dialect) -> None:
    message = JmsMessage.text("x", correlation_id="c", type="t", priority=9, persistent=False)
    head, _ = sent(dialect, message)
    assert {"priority:9", "correlation-id:c", "type:t"} <= set(head)
    assert not any(line.startswith("persistent") for line in head), "RabbitMQ declares another queue for it"


@every_dialect
@pytest.mark.parametrize(
    "name", ["ack", "receipt", "transaction", "subscription", "destination", "content-length"]
)
def test_a_property_never_passes_for_a_header(dialect: Dialect, name: str) -> None:
    # Not through JmsMessage.text, which knows JMS names only: a copy of a foreign message has any.
    message = JmsMessage(body_kind=BodyKind.TEXT, body="x", properties={name: "forged"})
    head, _ = sent(dialect, message)
    assert [line for line in head if line.endswith(":forged")] == [f"JMS_JMSJCA_Property_{name}:forged"]


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_properties_by_which_rabbitmq_would_route_copies_travel_under_another_name(name: str) -> None:
    head, _ = sent(RABBITMQ, JmsMessage.text("x", {name: "someone"}))
    assert [line for line in head if line.endswith(":someone")] == [f"JMS_JMSJCA_Property_{name}:someone"]


@every_dialect
def test_a_null_property_is_left_out_and_the_others_become_text(dialect: Dialect) -> None:
    head, _ = sent(dialect, JmsMessage.text("x", {"none": None, "yes": True, "n": 5, "f": 1.5}))
    assert {"yes:true", "n:5", "f:1.5"} <= set(head)
    assert not [line for line in head if line.startswith("none")]


@every_dialect
@pytest.mark.parametrize(
    "message",
    [JmsMessage.map({"a": 1}), JmsMessage.stream([1]), JmsMessage.object(b"\xac\xed")],
    ids=lambda message: message.body_kind.value,
)
def test_bodies_that_would_get_lost_are_refused(dialect: Dialect, message: JmsMessage) -> None:
    with pytest.raises(CapabilityError, match=message.body_kind.value):
        sent(dialect, message)


@every_dialect
def test_a_priority_that_artemis_would_confirm_and_drop(dialect: Dialect) -> None:
    above = dialect.highest_priority + 1
    with pytest.raises(ConfigurationError, match=str(above)):
        sent(dialect, JmsMessage(body_kind=BodyKind.TEXT, body="x", priority=above))


def test_a_priority_of_other_clients_of_rabbitmq_can_be_sent_on() -> None:
    head, _ = sent(RABBITMQ, JmsMessage(body_kind=BodyKind.TEXT, body="x", priority=10))
    assert "priority:10" in head


def test_delay() -> None:
    for dialect in (ACTIVEMQ, ARTEMIS):
        assert (
            "AMQ_SCHEDULED_DELAY:1500" in sent(dialect, JmsMessage.text("x"), delay=timedelta(seconds=1.5))[0]
        )
    with pytest.raises(CapabilityError, match="delayed_delivery"):
        sent(RABBITMQ, JmsMessage.text("x"), delay=timedelta(seconds=1))


@pytest.mark.parametrize(
    ("dialect", "head"),
    [
        (
            ACTIVEMQ,
            "message-id:1|scheduledJobId:ID|" + "|".join(f"AMQ_SCHEDULED_{name}:1" for name in SCHEDULE),
        ),
        (ARTEMIS, "message-id:1,2|_AMQ_SCHED_DELIVERY:1795252752884|AMQ_SCHEDULED_DELAY:6000"),
    ],
    ids=["activemq", "artemis"],
)
def test_how_a_message_was_delayed_is_not_sent_on_with_it(dialect: Dialect, head: str) -> None:
    """Otherwise it would be delayed once, and never again."""
    message = came(dialect, f"{head}|region:eu", b"x")
    assert message.properties == {"region": "eu"}
    again, _ = sent(dialect, message, delay=timedelta(seconds=6))
    schedule = [line for line in again if "SCHED" in line or "scheduled" in line]
    assert schedule == ["AMQ_SCHEDULED_DELAY:6000"]


@pytest.mark.parametrize(
    ("dialect", "name"),
    [
        (ACTIVEMQ, "/remote-temp-queue/ID:box-1-2:3:1"),
        (ACTIVEMQ, "/remote-temp-topic/ID:box-1-2:3:1"),
        (RABBITMQ, "/reply-queue/amq.gen-7b"),
    ],
)
def test_a_temporary_destination_keeps_the_name_that_the_broker_gave_it(dialect: Dialect, name: str) -> None:
    escaped = name.replace(":", r"\c")
    message = came(dialect, f"message-id:1|ack:1|reply-to:{escaped}", b"x")
    assert message.reply_to is not None
    answer, _ = sent(dialect, JmsMessage.text("x"), to=message.reply_to)
    assert f"destination:{escaped}" in answer
    moved, _ = sent(dialect, JmsMessage.text("x", reply_to=message.reply_to))
    assert f"reply-to:{escaped}" in moved


def test_activemq_names_the_property_that_is_too_long() -> None:
    sent(ACTIVEMQ, JmsMessage.text("x", {"trace": "x" * 10_000}))
    with pytest.raises(ConfigurationError, match="'trace' has 10001 characters"):
        sent(ACTIVEMQ, JmsMessage.text("x", {"fine": "y", "trace": "x" * 10_001}))
    with pytest.raises(ConfigurationError, match="'trace' takes 12005 bytes"):
        sent(ACTIVEMQ, JmsMessage.text("x", {"trace": "ü" * 6000}))
    with pytest.raises(ConfigurationError, match="1002 headers"):
        sent(ACTIVEMQ, JmsMessage.text("x", {f"p{n}": "" for n in range(1000)}))


def test_artemis_names_what_its_record_cannot_hold() -> None:
    """Measured on 2.56.0: 250,322 characters pass beside a small body, 50,751 beside one of 100 KiB."""
    large = "x" * 51_200
    sent(ARTEMIS, JmsMessage.text("x", {f"p{n}": "v" * 62_500 for n in range(4)}))
    sent(ARTEMIS, JmsMessage.text(large, {"p": "v" * 50_000}))
    sent(ARTEMIS, JmsMessage.text("x" * 51_000, {"p": "v" * 60_000}))
    sent(ARTEMIS, JmsMessage.bytes(b"x" * 102_000, {"p": "v" * 60_000}))
    with pytest.raises(ConfigurationError, match=r"Artemis takes 500800 in a message.*journal-buffer-size"):
        sent(ARTEMIS, JmsMessage.text("x", {f"p{n}": "v" * 63_000 for n in range(4)}))
    for message in (
        JmsMessage.text(large, {"p": "v" * 51_000}),
        JmsMessage.text(large, {"p": "\N{GRINNING FACE}" * 25_500}),
        JmsMessage.bytes(b"x" * 102_400, {"p": "v" * 51_000}),
    ):
        with pytest.raises(ConfigurationError, match=r"beside a body of 100 KiB.*stompMinLargeMessageSize"):
            sent(ARTEMIS, message)


# --- in: heads as the brokers wrote them


def test_text_from_activemq() -> None:
    message = came(
        ACTIVEMQ,
        "expires:0|region:e\\cu|destination:/queue/orders|ack:ID\\cvm-7\\c4|subscription:s1|priority:7"
        "|correlation-id:c1|reply-to:/topic/answers|type:order|redelivered:true"
        "|message-id:ID\\cvm-6\\c4\\c-1\\c1\\c3|persistent:true|timestamp:1795252751518",
        "plain🎉".encode(),
    )
    assert message == JmsMessage(
        body_kind=BodyKind.TEXT,
        body="plain🎉",
        properties={"region": "e:u"},
        message_id="ID:vm-6:4:-1:1:3",
        correlation_id="c1",
        reply_to=Destination.topic("answers"),
        type="order",
        destination=QUEUE,
        timestamp=1795252751518,
        priority=7,
        persistent=True,
        redelivered=True,
    )


def test_java_text_from_activemq_is_modified_utf8() -> None:
    assert came(ACTIVEMQ, "ack:1", b"a\xc0\x80b \xed\xa0\xbc\xed\xbe\x89").body == "a\0b 🎉"


def test_kinds_from_activemq() -> None:
    assert came(ACTIVEMQ, "content-length:1|ack:1", b"x").body == b"x"
    assert came(ACTIVEMQ, "content-length:0|ack:1").body == b""
    assert came(ACTIVEMQ, "content-length:3|ack:1|amq-msg-type:text", b"a\0b").body == "a\0b"
    assert came(ACTIVEMQ, "ack:1|JMS_JMSJCA_BodyKind:empty").body_kind is BodyKind.EMPTY
    assert came(ACTIVEMQ, "ack:1|JMS_JMSJCA_BodyKind:text").body == ""


def test_kinds_from_artemis_by_the_place_of_the_length() -> None:
    as_bytes = "subscription:s1|content-length:7|message-id:20,15|destination:t1|ack:20,15"
    as_text = "subscription:s1|message-id:20,15|destination:t1|ack:20,15|content-length:7"
    assert came(ARTEMIS, as_bytes, b"h\xc3\xa9\0\1ab").body == b"h\xc3\xa9\0\1ab"
    assert came(ARTEMIS, as_text, b"h\xc3\xa9llo!").body == "héllo!"
    ours = "subscription:s1|message-id:20,15|JMS_JMSJCA_BodyKind:empty|ack:20,15"
    assert came(ARTEMIS, ours).body_kind is BodyKind.EMPTY


@pytest.mark.parametrize("dialect", [ACTIVEMQ, ARTEMIS], ids=lambda dialect: dialect.product)
def test_what_comes_without_its_body_is_never_empty(dialect: Dialect) -> None:
    """As a map, stream or object of Java does, and nothing tells it from text that is empty."""
    with pytest.raises(PoisonMessageError, match="without a body"):
        came(dialect, "message-id:1|ack:1|JMSType:map")


def test_what_artemis_makes_of_a_map_is_no_text() -> None:
    """Measured: a few bytes, the first of them 0."""
    with pytest.raises(PoisonMessageError, match="map"):
        came(ARTEMIS, "message-id:20,15|ack:20,15|content-length:8", b"\x00\xd8\x80tru\n\x00")


@pytest.mark.parametrize("kind", ["Text", "Bytes", "Map", "Stream", "Object"])
def test_what_the_jms_client_of_rabbitmq_sends_is_undecodable_and_says_the_way_out(kind: str) -> None:
    """Measured with 3.7.0 on one of its own queues: each kind is serialized, the body is at the end."""
    head = (
        "subscription:0|destination:/exchange/jms.durable.queues/orders|message-id:T_0@@session-1@@1"
        "|redelivered:false|JMSPriority:4|JMSType:type|JMSMessageID:ID\\c1|JMSTimestamp:1795440184104"
        "|JMSCorrelationID:corr|JMSDeliveryMode:PERSISTENT|n:5|correlation-id:corr|priority:4|persistent:true"
        "|content-type:application/octet-stream"
    )
    name = f"com.rabbitmq.jms.client.message.RMQ{kind}Message".encode()
    body = b"\xac\xed\0\5wx" + len(name).to_bytes(2) + name + b"w\n\0\0\0\0\5plain"
    with pytest.raises(PoisonMessageError, match=r"RabbitMQ's JMS client serialized it.*AMQP destination"):
        came(RABBITMQ, head, body)
    ours = came(RABBITMQ, f"{head}|JMS_JMSJCA_BodyKind:bytes", body)
    assert (ours.body_kind, ours.body) == (BodyKind.BYTES, body)
    assert (ours.correlation_id, ours.priority, ours.persistent) == ("corr", 4, True)
    assert (ours.properties["n"], ours.properties["JMSType"]) == ("5", "type")


def test_forged_headers_from_artemis() -> None:
    head = (
        "\nsubscription:s1\nmessage-id:20,17\ndestination:t1\nexpires:0\nredelivered:false\npriority:4"
        "\npersistent:true\ntimestamp:1795252752884\ndestination-type:ANYCAST\nredelivered:true\nack:fake"
        "\nreceipt:9\nsubscription:forged\ntimestamp:12\ndestination-type:ANYCAST\nack:20,17"
    )
    frame = Frame(b"MESSAGE", head.encode(), b"x")
    assert ARTEMIS.acknowledgement(frame) == b"20,17"
    message = ARTEMIS.decode(frame, frame.headers(), ON_QUEUE)
    assert (message.redelivered, message.timestamp, message.message_id) == (False, 1795252752884, "17")
    assert message.properties == {}
    assert message.destination == Destination.queue("t1")


def test_forged_headers_from_rabbitmq() -> None:
    head = (
        "\nsubscription:s1\nredelivered:false\nack:T_s1@@session@@2"
        "\nredelivered:true\nsubscription:f\nack:fake"
    )
    frame = Frame(b"MESSAGE", head.encode(), b"")
    assert RABBITMQ.acknowledgement(frame) == b"T_s1@@session@@2"
    assert RABBITMQ.decode(frame, frame.headers(), ON_QUEUE).redelivered is False


def test_artemis_gives_groups_their_name_back() -> None:
    assert came(ARTEMIS, "message-id:1,2|_AMQ_GROUP_ID:g", b"x").properties == {"JMSXGroupID": "g"}


@pytest.mark.parametrize("value", ["text/plain", "text/plain;charset=utf-8"])
def test_rabbitmq_gives_a_content_type_of_the_users_back(value: str) -> None:
    sent = JmsMessage(body_kind=BodyKind.TEXT, body="x", properties={"content-type": value})
    frame = RABBITMQ.encode(Outgoing(destination=QUEUE, message=sent), lambda: "ID:1")
    head, _, body = frame.removesuffix(b"\0").partition(b"\n\n")
    came = Frame(b"MESSAGE", head.removeprefix(b"SEND"), body)
    assert RABBITMQ.decode(came, came.headers(), ON_QUEUE).properties == sent.properties


def test_rabbitmq_message_of_another_producer() -> None:
    head = "subscription:s1|destination:/exchange/x/key|message-id:T_s1@@s@@1|ack:T_s1@@s@@1|content-length:2"
    message = came(RABBITMQ, f"{head}|content-type:application/json", b"{}")
    assert (message.body, message.message_id, message.destination) == ("{}", None, QUEUE)
    assert message.properties == {"content-type": "application/json"}
    assert came(RABBITMQ, head, b"{}").body == b"{}"


def test_rabbitmq_counts_on_quorum_queues_only() -> None:
    assert came(RABBITMQ, "ack:1|x-delivery-count:2").delivery_count == 3
    assert came(RABBITMQ, "ack:1").delivery_count is None


def test_what_cannot_be_decoded_is_poison_and_can_be_salvaged() -> None:
    frame = Frame(b"MESSAGE", b"\nack:1\nmessage-id:m1\nk:v", b"\xff\xfe")
    with pytest.raises(PoisonMessageError, match="byte 0"):
        ACTIVEMQ.decode(frame, frame.headers(), ON_QUEUE)
    kept = ACTIVEMQ.salvage(frame, ON_QUEUE)
    assert (kept.body_kind, kept.body, kept.message_id) == (BodyKind.BYTES, b"\xff\xfe", "m1")
    assert kept.properties == {"k": "v"}
    with pytest.raises(PoisonMessageError, match=r"'timestamp' is not a number from 0 .*'soon'"):
        came(ACTIVEMQ, "ack:1|timestamp:soon", b"x")


# --- subscriptions


@every_dialect
def test_prefetch_of_zero(dialect: Dialect) -> None:
    with pytest.raises(ConfigurationError, match="prefetch"):
        dialect.check(Subscription(destination=QUEUE, prefetch=0), BROKER, None)


@pytest.mark.parametrize("dialect", [RABBITMQ, GENERIC], ids=lambda dialect: dialect.product)
def test_selectors_are_refused_where_they_are_ignored(dialect: Dialect) -> None:
    with pytest.raises(CapabilityError, match="selector"):
        dialect.check(Subscription(destination=QUEUE, selector="a = 'b'"), BROKER, None)


@pytest.mark.parametrize("dialect", [ACTIVEMQ, ARTEMIS, RABBITMQ], ids=lambda dialect: dialect.product)
def test_durable_subscriptions_say_all_that_is_missing(dialect: Dialect) -> None:
    dialect.check(Subscription(destination=TOPIC, durable_name="d"), BROKER, "client")
    with pytest.raises(ConfigurationError) as refused:
        dialect.check(Subscription(destination=QUEUE, durable_name="d"), BROKER, None)
    assert len(refused.value.faults) == 2


def test_how_each_subscribes() -> None:
    durable = Subscription(destination=TOPIC, durable_name="d", prefetch=7)
    assert ACTIVEMQ.subscribe(durable, "c") == {
        "destination": "/topic/news",
        "activemq.prefetchSize": "7",
        "activemq.subscriptionName": "d",
    }
    assert ARTEMIS.subscribe(durable, "c") == {
        "destination": "news",
        "subscription-type": "MULTICAST",
        "consumer-window-size": "10500",
        "durable-subscription-name": "d",
    }
    assert RABBITMQ.subscribe(durable, "c") == {
        "destination": "/topic/news",
        "prefetch-count": "7",
        "id": "c.d",
        "durable": "true",
        "auto-delete": "false",
    }
    assert GENERIC.subscribe(ON_QUEUE, None) == {"destination": "/queue/orders"}


def test_durable_subscriptions_of_two_clients_are_two_on_rabbitmq() -> None:
    """Its queue is named by one text for both, in which a dot is a dot."""

    def identifier(client_id: str, name: str) -> str:
        return RABBITMQ.subscribe(Subscription(destination=TOPIC, durable_name=name), client_id)["id"]

    pairs = [("a", "b.c"), ("a.b", "c"), ("a%2Eb", "c"), ("a.b.c", "d"), ("a", "b.c.d")]
    assert len({identifier(*each) for each in pairs}) == len(pairs)


def test_artemis_hands_out_one_by_one_with_an_empty_window() -> None:
    headers = ARTEMIS.subscribe(Subscription(destination=QUEUE, prefetch=1), None)
    assert headers["consumer-window-size"] == "0"


@pytest.mark.parametrize(
    ("selector", "sent_as"),
    [
        ("n > 2", "convert_string_expressions:n > 2.0"),
        ("JMSPriority >= 5", "convert_string_expressions:AMQPriority >= 5"),
        ("a = 'JMSPriority'", "convert_string_expressions:a = 'JMSPriority'"),
        ("JMSXGroupID = 'it''s'", "convert_string_expressions:_AMQ_GROUP_ID = 'it''s'"),
    ],
)
def test_selectors_in_the_words_of_artemis(selector: str, sent_as: str) -> None:
    headers = ARTEMIS.subscribe(Subscription(destination=QUEUE, selector=selector), None)
    assert headers["selector"] == sent_as


@pytest.mark.parametrize("dialect", [ACTIVEMQ, ARTEMIS])
def test_selectors_are_sent_as_brokers_read_them(dialect: Dialect) -> None:
    """ActiveMQ reads `(NOT region) = 'eu'`, and stops delivering without a word. J182: `a <> NULL`."""
    sent = dialect.subscribe(
        Subscription(destination=QUEUE, selector="NOT region = 'eu' AND a <> NULL"), None
    )
    selector = sent["selector"].removeprefix("convert_string_expressions:")
    assert selector == "(NOT (region = 'eu')) AND (a IS NOT NULL)"
    assert "selector" not in ACTIVEMQ.subscribe(Subscription(destination=QUEUE, selector="  "), None)


@pytest.mark.parametrize("dialect", [ACTIVEMQ, ARTEMIS, RABBITMQ])
def test_names_in_the_providers_jndi_are_refused_j86_j90(dialect: Dialect) -> None:
    """The broker would make a queue of that very name, and nobody would ever look there."""
    there = Destination.queue("jndi://queues/q1234")
    with pytest.raises(ConfigurationError, match="jndi:// names are in the provider's own JNDI"):
        consumer_headers(dialect, there)
    with pytest.raises(ConfigurationError, match="Expected the name at the broker, such as queue://orders"):
        dialect.encode(Outgoing(destination=there, message=JmsMessage.text("a")), lambda: "1")


def test_selectors_that_match_nothing_on_artemis_are_refused() -> None:
    with pytest.raises(CapabilityError) as refused:
        ARTEMIS.check(
            Subscription(destination=QUEUE, selector="JMSMessageID = 'x' OR JMSDeliveryMode = 'PERSISTENT'"),
            BROKER,
            None,
        )
    assert len(refused.value.faults) == 2


def test_rabbitmq_returns_orphans_through_another_subscription() -> None:
    assert RABBITMQ.orphan(b"T_s1@@session-x@@5", "keeper-1") == b"T_keeper-1@@session-x@@5"


# --- options of a destination


def with_options(destination: Destination, **options: str) -> Destination:
    return replace(destination, options=tuple((k.replace("_", "-"), v) for k, v in options.items()))


def test_queue_arguments_of_rabbitmq_declare_the_queue_on_both_sides_j91() -> None:
    quorum = with_options(QUEUE, x_queue_type="quorum", prefetch="3")
    head, _ = sent(RABBITMQ, JmsMessage.text("x"), to=quorum)
    assert "x-queue-type:quorum" in head
    assert not any(line.startswith("prefetch") for line in head)
    assert consumer_headers(RABBITMQ, quorum) == {"x-queue-type": "quorum"}
    assert producer_headers(RABBITMQ, with_options(TOPIC, x_queue_type="quorum")) == []


def test_consumer_options_of_activemq_are_no_properties_of_messages_j91() -> None:
    exclusive = with_options(QUEUE, **{"activemq.exclusive": "true"})
    assert consumer_headers(ACTIVEMQ, exclusive) == {"activemq.exclusive": "true"}
    head, _ = sent(ACTIVEMQ, JmsMessage.text("x"), to=exclusive)
    assert head == ["SEND", "destination:/queue/orders", "persistent:true"]


@every_dialect
def test_options_the_broker_would_ignore_are_refused_j91(dialect: Dialect) -> None:
    odd = with_options(QUEUE, selector="1=1", color="red")
    for refused in (
        lambda: consumer_headers(dialect, odd),
        lambda: sent(dialect, JmsMessage.text("x"), to=odd),
    ):
        with pytest.raises(ConfigurationError) as caught:
            refused()
        assert [fault.split(": ")[1].split()[0] for fault in caught.value.faults] == ["selector", "color"]


def test_rabbitmq_tells_client_ids_and_names_with_dots_apart() -> None:
    names = [("a", "b.c"), ("a.b", "c"), ("a%2Eb", "c"), ("a%2Eb.c", "d"), ("a", "b")]
    ids = [
        RABBITMQ.subscribe(Subscription(destination=TOPIC, durable_name=name), client)["id"]
        for client, name in names
    ]
    assert ids == ["a.b.c", "a%2Eb.c", "a%252Eb.c", "a%252Eb%2Ec.d", "a.b"]


@every_dialect
@pytest.mark.parametrize("name", ["orders", "eu/orders", "a b"])
def test_a_reply_to_comes_back_as_it_was_sent(dialect: Dialect, name: str) -> None:
    for to in (Destination.queue(name), Destination.topic(name)):
        assert dialect.reply_to_from(dialect.reply_to(to)) == to
    frame = f"message-id:1|destination:{dialect.destination(QUEUE)}|reply-to:{dialect.reply_to(TOPIC)}"
    message = came(dialect, frame.replace("topic:", "topic\\c") + "|content-length:1", b"x")
    assert (message.destination, message.reply_to) == (QUEUE, TOPIC)


class PrefixedDialect(GenericDialect):
    """Names its destinations otherwise than most brokers."""

    def destination(self, destination: Destination) -> str:
        return f"/toy/{destination.kind}/{destination.name}"

    def destination_from(self, text: str) -> Destination | None:
        return super().destination_from(text.removeprefix("/toy"))


def test_a_dialect_with_names_of_its_own_needs_two_methods() -> None:
    head = "destination:/toy/topic/news|reply-to:/toy/queue/answers"
    message = came(PrefixedDialect(), head, b"x")
    assert (message.destination, message.reply_to) == (TOPIC, Destination.queue("answers"))
    salvaged = PrefixedDialect().salvage(
        Frame(b"MESSAGE", f"\n{head}".replace("|", "\n").encode(), b"x"), ON_QUEUE
    )
    assert (salvaged.destination, salvaged.reply_to) == (TOPIC, Destination.queue("answers"))


class ExpiringDialect(GenericDialect):
    """Has a header of its own for the expiration."""

    expires = "x-until"
    hidden = GenericDialect.hidden | {"x-until"}
    taken = GenericDialect.taken | {"x-until"}


def test_the_expiration_may_have_a_header_of_its_own() -> None:
    lines, _ = sent(ExpiringDialect(), JmsMessage.text("x", expiration=9))
    assert "x-until:9" in lines
    assert came(ExpiringDialect(), "x-until:9|expires:5", b"x").expiration == 9


class FaultyDialect(GenericDialect):
    """Expects more of messages than they say."""

    def lasting(self, identifier: str) -> str:
        return identifier.split("-")[1]

    def property_name(self, header: str) -> str:
        return {"color": "colour"}[header]


def test_whatever_a_dialect_does_wrong_something_of_a_message_can_be_kept() -> None:
    head = b"\nmessage-id:1\ncolor:red\nsize:9\ndestination:/queue/orders"
    salvaged = FaultyDialect().salvage(Frame(b"MESSAGE", head, b"x"), ON_QUEUE)
    assert (salvaged.message_id, salvaged.body) == (None, b"x")
    assert salvaged.properties == {"message-id": "1", "colour": "red", "size": "9"}


@pytest.mark.parametrize("reader", ALL, ids=lambda dialect: dialect.product)
@pytest.mark.parametrize(
    "message", [JmsMessage.text("x"), JmsMessage.text(""), JmsMessage.bytes(b"x"), JmsMessage.empty()]
)
def test_what_the_generic_dialect_marks_is_read_as_marked_everywhere(
    reader: Dialect, message: JmsMessage
) -> None:
    head, body = sent(GENERIC, message)
    found = came(reader, "|".join(head[1:]), body)
    assert (found.body_kind, found.body) == (message.body_kind, message.body)
