from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError
from airflow_provider_jmsjca.transports.stomp.frames import (
    ACK,
    SUBSCRIPTION,
    Frame,
    FrameParser,
    ProtocolError,
    encode,
    escape,
    unescape,
)

# Bytes on the left, (command, head, body) of each frame on the right.
STREAMS = {
    "one": (b"RECEIPT\nreceipt-id:7\n\n\0", [(b"RECEIPT", b"\nreceipt-id:7", b"")]),
    "no headers": (b"CONNECTED\n\n\0", [(b"CONNECTED", b"", b"")]),
    "heart-beats around": (
        b"\n\r\n\nRECEIPT\na:b\n\n\0\n\n\r\n",
        [(b"RECEIPT", b"\na:b", b"")],
    ),
    "body until NUL": (b"MESSAGE\na:b\n\nhello\n\nworld\0", [(b"MESSAGE", b"\na:b", b"hello\n\nworld")]),
    "body with NUL": (
        b"MESSAGE\ncontent-length:5\n\na\0b\0c\0\nRECEIPT\nr:1\n\n\0",
        [(b"MESSAGE", b"\ncontent-length:5", b"a\0b\0c"), (b"RECEIPT", b"\nr:1", b"")],
    ),
    "first content-length counts": (
        b"MESSAGE\ncontent-length:1\ncontent-length:9\n\nx\0",
        [(b"MESSAGE", b"\ncontent-length:1\ncontent-length:9", b"x")],
    ),
    "content-length of zero": (
        b"MESSAGE\ncontent-length:0\nz:1\n\n\0",
        [(b"MESSAGE", b"\ncontent-length:0\nz:1", b"")],
    ),
    "content-length in the body": (
        b"MESSAGE\na:b\n\n\ncontent-length:99\0",
        [(b"MESSAGE", b"\na:b", b"\ncontent-length:99")],
    ),
    "a name that ends in content-length": (
        b"MESSAGE\nmy-content-length:99\n\nx\0",
        [(b"MESSAGE", b"\nmy-content-length:99", b"x")],
    ),
    "carriage returns": (
        b"MESSAGE\r\na:b\r\ncontent-length:4\r\n\r\n\r\n\n\n\0",
        [(b"MESSAGE", b"\na:b\ncontent-length:4", b"\r\n\n\n")],
    ),
    "carriage returns in the body only": (
        b"MESSAGE\na:b\n\nx\r\n\r\ny\n\r\n\0",
        [(b"MESSAGE", b"\na:b", b"x\r\n\r\ny\n\r\n")],
    ),
}


def parsed(parser: FrameParser, *chunks: bytes) -> list[tuple[bytes, bytes, bytes]]:
    return [(frame.command, frame.head, frame.body) for chunk in chunks for frame in parser.feed(chunk)]


@pytest.mark.parametrize(("stream", "expected"), STREAMS.values(), ids=STREAMS.keys())
def test_whole(stream: bytes, expected: list[tuple[bytes, bytes, bytes]]) -> None:
    assert parsed(FrameParser(), stream) == expected


@pytest.mark.parametrize(("stream", "expected"), STREAMS.values(), ids=STREAMS.keys())
def test_byte_by_byte(stream: bytes, expected: list[tuple[bytes, bytes, bytes]]) -> None:
    assert parsed(FrameParser(), *(stream[at : at + 1] for at in range(len(stream)))) == expected


@settings(max_examples=60)
@given(
    bodies=st.lists(st.tuples(st.binary(max_size=60), st.booleans()), min_size=1, max_size=5),
    cuts=st.lists(st.integers(min_value=0, max_value=400), max_size=8),
)
def test_any_bytes_split_anywhere_parse_the_same(bodies: list[tuple[bytes, bool]], cuts: list[int]) -> None:
    stream = b""
    expected = []
    for body, beat in bodies:
        head = b"\nsubscription:s1\ncontent-length:" + str(len(body)).encode()
        stream += b"MESSAGE" + head + b"\n\n" + body + b"\0" + (b"\n" if beat else b"")
        expected.append((b"MESSAGE", head, body))
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    chunks = [stream[start:end] for start, end in itertools.pairwise(places)]
    assert parsed(FrameParser(), *chunks) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_bodies_with_nul_and_no_length_where_frames_end_with_a_line_feed(size: int) -> None:
    stream = b"MESSAGE\na:b\n\nx\0y\n\0\0\nRECEIPT\nr:1\n\n\0\n\n"
    chunks = (stream[at : at + size] for at in range(0, len(stream), size))
    assert parsed(FrameParser(end=b"\0\n"), *chunks) == [
        (b"MESSAGE", b"\na:b", b"x\0y\n\0"),
        (b"RECEIPT", b"\nr:1", b""),
    ]


def test_a_large_body_in_many_pieces_is_not_copied_with_each() -> None:
    size = 30 * 1024 * 1024
    parser = FrameParser()
    assert parser.feed(b"MESSAGE\ncontent-length:%d\n\n" % size) == []
    piece = b"x" * (64 * 1024)
    for _ in range(size // len(piece)):
        assert parser.feed(piece) == []
    (frame,) = parser.feed(b"\0")
    assert len(frame.body) == size


@pytest.mark.parametrize(
    ("stream", "match"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "HTTP/1.1 400"),
        (b"SEND\ndestination:x\n\n\0", "SEND"),
        (b"x" * 100, "doesn't speak STOMP"),
        (b"MESSAGE\ncontent-length:2\n\nabc\0", "goes on after its content-length"),
        (b"MESSAGE\ncontent-length:-1\n\nabc\0", "-1.* no number"),
        (b"MESSAGE\ncontent-length:five\n\nabc\0", "five.* no number"),
    ],
)
def test_what_is_not_stomp_is_refused(stream: bytes, match: str) -> None:
    with pytest.raises(ProtocolError, match=match):
        FrameParser().feed(stream)


def test_headers_are_unescaped_and_the_first_counts() -> None:
    frame = Frame(b"MESSAGE", b"\na:1\\c2\\n3\\r4\\\\5\nb\\c:x\na:second\nempty:\nu:Gr\xc3\xbc\xc3\x9fe", b"")
    assert frame.headers() == {"a": "1:2\n3\r4\\5", "b:": "x", "empty": "", "u": "Grüße"}


def test_a_value_keeps_its_colons_and_blanks() -> None:
    assert Frame(b"MESSAGE", b"\na: b:c ", b"").headers() == {"a": " b:c "}


@pytest.mark.parametrize(
    ("head", "match"),
    [
        (b"\na:\\t", r"\\\\t"),
        (b"\na:x\\", "forbids"),
        (b"\na:\xff", "byte 3"),
        (b"\nno colon", "'no colon' has no colon"),
    ],
)
def test_headers_that_break_the_rules_are_poison(head: bytes, match: str) -> None:
    with pytest.raises(PoisonMessageError, match=match):
        Frame(b"MESSAGE", head, b"").headers()


def test_first_and_last_of_repeated_headers() -> None:
    frame = Frame(
        b"MESSAGE", b"\nsubscription:real\nack:forged\nx-ack:no\nsubscription:forged\nack:real", b""
    )
    assert frame.first(SUBSCRIPTION) == b"real"
    assert frame.last(ACK) == b"real"
    assert frame.first(ACK) == b"forged"
    assert frame.first(b"\nabsent:") is None
    assert frame.last(b"\nabsent:") is None


@pytest.mark.parametrize(
    ("plain", "escaped"),
    [
        ("a:b", "a\\cb"),
        ("a\nb", "a\\nb"),
        ("a\rb", "a\\rb"),
        ("a\\b", "a\\\\b"),
        ("\\n", "\\\\n"),
        ("", ""),
        ("ü", "ü"),
    ],
)
def test_escape_and_back(plain: str, escaped: str) -> None:
    assert escape(plain) == escaped
    assert unescape(escaped) == plain


@settings(max_examples=60)
@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")))
def test_any_header_survives(value: str) -> None:
    frame = encode("MESSAGE", [("name", value), ("other", "x")], b"body")
    (came,) = FrameParser().feed(frame)
    assert came.headers() == {"name": value, "other": "x"}
    assert came.body == b"body"


def test_encode() -> None:
    assert encode("SEND", [("destination", "/queue/a"), ("k", "a:b")], b"x\0y") == (
        b"SEND\ndestination:/queue/a\nk:a\\cb\n\nx\0y\0"
    )
    assert encode("SEND", [("a:b", "c\nd")]) == b"SEND\na\\cb:c\\nd\n\n\0"


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_a_property_that_cannot_be_sent_is_named(value: str) -> None:
    with pytest.raises(ConfigurationError, match="'color'"):
        encode("SEND", [("fine", "x"), ("color", value)])
