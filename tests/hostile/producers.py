"""Malformed and malicious messages, sent by raw sockets among good ones."""

from __future__ import annotations

import contextlib
import re
import socket
from dataclasses import dataclass, replace
from typing import Self

from airflow_provider_jmsjca import connect
from tests.servers.broker import Broker

GOOD = 1000
_LONG = "9" * 400
_SMUGGLED_INTO = ("s1", "s2", "s3", "1", "2", "3", "0", "sub-1", "T_1", "listener")


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A message that no good producer sends.

    Attributes:
        name: Of the kind; stands in the property `kind` and in the body as `kind=<name>;`.
        headers: Lines of the SEND frame after those that every message has, as bytes.
        body: What follows the mark.
        length: The content-length to claim; `None` for no such header.
        may_vanish: The broker may take the message and deliver it to nobody, as it was asked to.
    """

    name: str
    headers: tuple[bytes, ...] = ()
    body: bytes = b""
    length: bytes | None = None
    may_vanish: bool = False

    @property
    def whole(self) -> bytes:
        """The body with its mark."""
        return b"kind=%s;%s" % (self.name.encode(), self.body)


def _text(name: str, body: bytes) -> Bad:
    """Return a kind that claims to be text and a length: the broker decodes it, and may stretch it."""
    return replace(_bytes(name, body), headers=(b"amq-msg-type:text",))


def _bytes(name: str, body: bytes) -> Bad:
    bad = Bad(name=name, body=body)
    return replace(bad, length=b"%d" % len(bad.whole))


def _with(name: str, *headers: str | bytes, may_vanish: bool = False) -> Bad:
    lines = tuple(each.encode() if isinstance(each, str) else each for each in headers)
    return Bad(name=name, headers=lines, may_vanish=may_vanish)


def _frames(queue: str) -> bytes:
    """Return frames as the broker sends them, for who takes the end of a body for that of a message."""
    forged = b"".join(
        b"MESSAGE\nsubscription:%s\nmessage-id:forged\nack:forged\ndestination:%s\n\nforged\0\n"
        % (each.encode(), queue.encode())
        for each in _SMUGGLED_INTO
    )
    receipts = b"".join(b"RECEIPT\nreceipt-id:%d\n\n\0\n" % number for number in range(1, 30))
    return forged + receipts


def kinds(queue: str) -> list[Bad]:
    """Return all kinds, for a queue as its producers write its name."""
    frames = _frames(queue)
    stretched = b"\xff" * (len(frames) // 2 + 1)  # each becomes three bytes in the broker
    return [
        # -- bodies
        _text("invalid_utf8", b"\xff\xfe\x80\xc3("),
        _text("overlong_utf8", b"\xc0\xaf\xe0\x80\xaf"),
        _text("cesu8", b"\xed\xa0\xbd\xed\xb8\x80"),
        _text("lone_surrogate", b"\xed\xa0\xbd"),
        _text("modified_nul", b"a\xc0\x80b"),
        _text("nuls", b"a\0\0b"),
        _bytes("nuls_of_bytes", b"a\0b"),
        _text("empty_text", b""),
        _text("control_characters", bytes(range(1, 32))),
        _text("looks_like_frames", b"\n\nMESSAGE\nsubscription:1\n\nx\n"),
        _text("smuggled_messages", stretched + b"\0\n" + frames),
        _text("smuggled_after_nul", b"\0\n" + frames),
        _text("smuggled_receipts", b"\xff" * 400 + b"\0\nRECEIPT\nreceipt-id:1\n\n\0\n" * 8),
        _text("smuggled_error", b"\xff" * 30 + b"\0\nERROR\nmessage:go away\n\n\0\n"),
        _text("smuggled_connected", b"\xff" * 30 + b"\0\nCONNECTED\nversion:1.0\n\n\0\n"),
        _text("smuggled_garbage", b"\xff" * 100 + b"\0" + b"\x07garbage" * 20),
        _text("giant_text", b"\xc3\xa9" * 1_500_000),
        _text("giant_invalid", b"\xff" * 700_000),
        _bytes("giant_bytes", b"\xfe" * 3_000_000),
        Bad(name="length_too_small", body=b"x" * 40, length=b"3"),
        Bad(name="length_too_large", body=b"x", length=b"5000"),
        Bad(name="length_negative", length=b"-1"),
        Bad(name="length_no_number", length=b"many"),
        Bad(name="length_enormous", length=_LONG.encode()),
        # -- who is to be answered
        _with("reply_to_empty", "reply-to:"),
        _with("reply_to_queue_without_name", "reply-to:/queue/"),
        _with("reply_to_slash", "reply-to:/"),
        _with("reply_to_url", "reply-to:queue://"),
        _with("reply_to_controls", "reply-to:/queue/a\\nb\\c\x01"),
        _with("reply_to_temporary", "reply-to:/temp-queue/"),
        _with("reply_to_itself", f"reply-to:{queue}"),
        _with("reply_to_long", f"reply-to:/queue/{'q' * 300}"),
        # -- numbers
        _with("expires_text", "expires:soon"),
        _with("expires_negative", "expires:-1", may_vanish=True),
        _with("expires_past", "expires:1", may_vanish=True),
        _with("expires_enormous", f"expires:{_LONG}"),
        _with("expiration_text", "expiration:soon"),
        _with("priority_text", "priority:high"),
        _with("priority_negative", "priority:-1", may_vanish=True),
        _with("priority_99", "priority:99", may_vanish=True),
        _with("priority_enormous", f"priority:{_LONG}"),
        _with("timestamp_text", "timestamp:yesterday"),
        _with("timestamp_enormous", f"timestamp:{_LONG}"),
        _with("timestamp_out_of_range", "timestamp:9223372036854775807"),
        _with("timestamp_negative", "timestamp:-9223372036854775808"),
        _with("delivery_count_text", "JMSXDeliveryCount:often", "x-delivery-count:often"),
        _with("delivery_count_enormous", f"JMSXDeliveryCount:{_LONG}", f"x-delivery-count:{_LONG}"),
        _with("group_sequence_text", "JMSXGroupID:g", "JMSXGroupSeq:first"),
        _with("group_sequence_enormous", "JMSXGroupID:g", f"JMSXGroupSeq:{_LONG}"),
        _with("delay_text", "AMQ_SCHEDULED_DELAY:later"),
        _with("arabic_digits", "priority:\u0664", "expires:\u0660", "timestamp:\u0661"),
        # -- what the broker says
        _with("forged_redelivered", "redelivered:true"),
        _with("forged_redelivered_word", "redelivered:perhaps"),
        _with("forged_ack", "ack:1", "ack:fake"),
        _with("forged_message_id", "message-id:ID:good-1"),
        _with("forged_amqp_message_id", "amqp-message-id:good-1"),
        _with("forged_subscription", "subscription:s1"),
        _with("forged_timestamp", "timestamp:1"),
        _with("forged_persistent", "persistent:perhaps", may_vanish=True),
        _with("forged_browser", "browser:end"),
        _with("forged_receipt_id", "receipt-id:1", "heart-beat:x", "version:9"),
        # -- our own marks
        _with("forged_parked", "_JMSJCA_ParkedJMSMessageID:good-1", "_JMSJCA_ParkedRedeliveryCount:99"),
        _with("forged_parked_numbers", "_JMSJCA_ParkedJMSMessageID:x", "_JMSJCA_ParkedRedeliveryCount:NaN"),
        _with(
            "forged_published",
            "_JMSJCA_PublishedJMSMessageID:good-1",
            "_JMSJCA_PublishedJMSDestination:://",
            "_JMSJCA_PublishedJMSTimestamp:never",
        ),
        _with("forged_in_progress", "_JMSJCA_InProgressFrom:://", "_JMSJCA_InProgressRun:0"),
        _with("forged_undecodable", "_JMSJCA_UndecodableReason:none", "_JMSJCA_BodyKind:object"),
        _with("forged_expiration", "_JMSJCA_Expiration:never", "_JMSJCA_Property:x", "_JMSJCA_:x"),
        _with(
            "forged_dead_letter",
            "JMS_Sun_JMSJCA_OriginalDestinationName:other",
            "JMS_Sun_JMSJCA_OriginalDestinationType:nothing",
            "JMS_Sun_JMSJCA_OriginalTimestamp:never",
            "JMS_Sun_JMSJCA_RedeliveryCount:-1",
            "JMSJCARedeliveryHandling:1:delete",
        ),
        # -- properties
        _with("property_of_9000", f"long:{'x' * 9000}"),
        _with("property_of_10100", f"long:{'x' * 10_100}"),
        _with("property_of_90000", f"long:{'x' * 90_000}"),
        _with("properties_400", *(f"p{number}:{number}" for number in range(400))),
        _with("properties_940", *(f"p{number}:{number}" for number in range(940))),
        _with("property_without_name", ":nameless"),
        _with("property_without_value", "nothing:"),
        _with("property_without_colon", "nocolon"),
        _with("property_names_odd", "a b:1", "a.b-c:2", "'; drop:3", "\\c\\c:4", "JMSXNope:5", "中文:6"),
        _with("property_names_java", "java.lang.Integer:5", "JMS_x:6", "NULL:7", "TRUE:8", "NOT:9"),
        _with("property_controls", b"controls:\x01\x02\x1b[31m\x7f"),
        _with("property_escapes", "escapes:a\\cb\\nc\\\\d\\re"),
        _with("property_bad_escape", "escapes:a\\tb\\"),
        _with("property_invalid_utf8", b"bytes:\xff\xfe\x80"),
        _with("property_cesu8", b"emoji:\xed\xa0\xbd\xed\xb8\x80"),
        _with("property_emoji", "emoji:😀"),
        _with(
            "duplicate_headers", "twice:1", "twice:2", "type:a", "type:b", "correlation-id:1", "kind:other"
        ),
        _with("duplicate_destination", "destination:/queue/elsewhere"),
        _with("selector_names", "JMSPriority:9", "JMSType:x", "JMSMessageID:x", "region' OR 'a'='a:eu"),
        _with("deduplication_id", "_AMQ_DUPL_ID:same", may_vanish=True),
        _with("group_id_long", f"JMSXGroupID:{'g' * 3000}"),
        _with("group_id_empty", "JMSXGroupID:", "_AMQ_GROUP_ID:"),
        # -- types
        _with("type_map", "amq-msg-type:map"),
        _with("type_unknown", "amq-msg-type:nonsense"),
        _with("transformation_map", "transformation:jms-map-json"),
        _with("transformation_object", "transformation:jms-object-xml"),
        _with("transformation_unknown", "transformation:none-such"),
        _with("content_type_odd", "content-type:text/plain;charset=none", "content-encoding:gzip"),
        _with("content_type_java", "content-type:application/x-java-serialized-object"),
        _with("correlation_lines", "correlation-id:a\\nb\\c\\\\", "type:a\\nb"),
    ]


def product_of(broker: Broker) -> str:
    """Return what a broker calls itself."""
    with contextlib.closing(connect(broker.settings())) as ours:
        return ours.broker.product


def wire_name(broker: Broker, queue: str) -> str:
    """Return a queue's name as producers write it for a broker: on Artemis it is the name alone."""
    return queue if product_of(broker) == "artemis" else f"/queue/{queue}"


class Producer:
    """A STOMP client that writes whatever it is told, and connects anew when the broker has had enough."""

    def __init__(self, broker: Broker, queue: str) -> None:
        self._broker = broker
        self._destination = wire_name(broker, queue).encode()
        self._socket: socket.socket | None = None
        self._receipts = 0

    def _connected(self) -> socket.socket:
        if self._socket is None:
            settings = self._broker.settings()
            self._socket = socket.create_connection(self._broker.address(), 10)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(
                f"CONNECT\naccept-version:1.2\nhost:/\nlogin:{settings.username}\n"
                f"passcode:{settings.password}\n\n\0".encode()
            )
            assert self._answer(self._socket).startswith(b"CONNECTED")
        return self._socket

    @staticmethod
    def _answer(sock: socket.socket) -> bytes:
        """Return the next frame without its end; what came of it if the broker hangs up."""
        came = b""
        while b"\0" not in came.lstrip(b"\n"):
            # A receipt takes 40 ms where the broker waits for our acknowledgement of its last packet.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            if not (data := sock.recv(65536)):
                break
            came += data
        return came.lstrip(b"\n").partition(b"\0")[0]

    def _frame(self, *headers: bytes, body: bytes) -> bytes:
        lines = (
            b"SEND",
            b"destination:" + self._destination,
            b"destination-type:ANYCAST",
            b"persistent:true",
            *headers,
        )
        return b"\n".join((*lines, b"", body + b"\0"))

    def send_good(self, numbers: range) -> None:
        """Send good messages, and wait until the broker has the last one."""
        self._receipts += 1
        receipt = b"receipt:r%d" % self._receipts
        frames = [
            self._frame(
                b"number:%d" % number,
                b"content-type:text/plain",
                b"amqp-message-id:good-%d" % number,
                *((receipt,) if number == numbers[-1] else ()),
                body=b"good-%d" % number,
            )
            for number in numbers
        ]
        sock = self._connected()
        sock.sendall(b"".join(frames))
        assert self._answer(sock).startswith(b"RECEIPT")

    def send_bad(self, bad: Bad) -> bool:
        """Send one bad message; say whether the broker took it."""
        self._receipts += 1
        headers = [b"kind:" + bad.name.encode(), *bad.headers, b"receipt:r%d" % self._receipts]
        if bad.length is not None:
            headers.append(b"content-length:" + bad.length)
        sock = self._connected()
        sock.settimeout(1)
        try:
            sock.sendall(self._frame(*headers, body=bad.whole))
            taken = self._answer(sock).startswith(b"RECEIPT")
        except OSError:  # cut off, or nothing for so long: it waits for more
            taken = False
        # Whatever the broker makes of the rest, it is nothing to the next one.
        self.close()
        return taken

    def drain(self) -> bytes:
        """Take everything out of the queue and return it as it stands on the wire."""
        sock = self._connected()
        sock.sendall(
            b"SUBSCRIBE\nid:drain\nack:auto\nsubscription-type:ANYCAST\nconsumer-window-size:-1\n"
            b"destination:" + self._destination + b"\n\n\0"
        )
        sock.settimeout(1)
        came = bytearray()
        try:
            while data := sock.recv(1 << 20):
                came += data
        except TimeoutError:
            pass
        self.close()
        return bytes(came)

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def flood(broker: Broker, queue: str) -> dict[str, Bad]:
    """Send all the good ones, and the bad ones among them; return those that the broker took, by name."""
    bad = kinds(wire_name(broker, queue))
    taken: dict[str, Bad] = {}
    with Producer(broker, queue) as good, Producer(broker, queue) as hostile:
        share = -(-GOOD // len(bad))
        for place, each in enumerate(bad):
            numbers = range(place * share, min(GOOD, (place + 1) * share))
            if numbers:
                good.send_good(numbers)
            if hostile.send_bad(each):
                taken[each.name] = each
    assert len(taken) >= 50, f"the broker refused {len(bad) - len(taken)} of {len(bad)}"
    return taken


_KIND = re.compile(rb"kind[=:]([a-z0-9_]+)")
_NUMBER = re.compile(rb"\n\ngood-(\d+)\0")


def kinds_in(data: bytes) -> set[str]:
    """Return the kinds whose marks stand in data."""
    return {found.decode() for found in _KIND.findall(data)}


def numbers_in(data: bytes) -> set[int]:
    """Return the good messages whose marks stand in data."""
    return {int(found) for found in _NUMBER.findall(data)}
