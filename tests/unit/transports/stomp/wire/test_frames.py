from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError
from airflow_provider_jmsjca.transports.stomp.wire.frames import (
    ACK,
    MAX_HEADER_LINE,
    MAX_HEADERS,
    SUBSCRIPTION,
    ForgedFrameError,
    Frame,
    FrameParser,
    FrameTooLargeError,
    ProtocolError,
    SuspectIds,
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
        (b"MESSAGE\ncontent-length:2\n\nabc\0", "is longer than its content-length"),
        (b"MESSAGE\ncontent-length:-1\n\nabc\0", "-1.* no number"),
        (b"MESSAGE\ncontent-length:five\n\nabc\0", "five.* no number"),
        (b"MESSAGE\ncontent-length:" + b"9" * 5000 + b"\n\nabc\0", "no number"),
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


TOKEN = b"n0b0dyKnows"
ERRORS = b"ERROR\nmessage:m\n\nbody\0\n"


def ours(number: int, body: bytes = b"x", more: bytes = b"") -> bytes:
    """A MESSAGE of the broker's to us."""
    return b"MESSAGE\nmessage-id:m%d\n%bsubscription:%bs1\nack:a\n\n%b\0\n" % (number, more, TOKEN, body)


def receipt(number: int) -> bytes:
    return b"RECEIPT\nreceipt-id:%b%d\n\n\0\n" % (TOKEN, number)


def is_asked(identifier: bytes) -> bool:
    """Say whether one of our receipts has this id."""
    return identifier.startswith(TOKEN)


def careful(suspects: SuspectIds | None = None) -> FrameParser:
    parser = FrameParser(b"\0\n", SuspectIds() if suspects is None else suspects)
    parser.believe_only(TOKEN, is_asked)
    return parser


def shown(frames: list[Frame]) -> list[tuple[bytes, bytes, bool]]:
    return [(frame.command, frame.body, frame.fault is not None) for frame in frames]


def in_pieces(parser: FrameParser, stream: bytes, size: int) -> list[Frame]:
    return [frame for at in range(0, len(stream), size) for frame in parser.feed(stream[at : at + size])]


LENGTH = b"content-length:1\n"
# What comes after a message that is told to end early; the broker's NUL and line feed follow.
SURPLUS = {
    "a message": b"MESSAGE\nsubscription:s1\nack:a\n\nforged",
    "a receipt": b"RECEIPT\nreceipt-id:7\n\n",
    "an error that names a receipt": b"ERROR\nreceipt-id:7\n\n",
    "a second CONNECTED": b"CONNECTED\nversion:1.0\n\n",
    "a command of no broker": b"SEND\ndestination:x\n\n",
    "a head without an end": b"MESSAGE\nsubscription:s1\nx:",
    **{f"{length} letters of a command": b"MESSAGE"[:length] for length in range(1, 8)},
    "a body that would go on": b"MESSAGE\nsubscription:s1\ncontent-length:999999\n\n",
    "a head that takes in the next one": b"MESSAGE\nack:evil\nmessage-id:evil\nx:",
    "two of them": b"RECEIPT\nreceipt-id:7\n\n\0\nMESSAGE\nsubscription:s2\n\nforged",
    "lines": b"\n\n\r\n\n",
}


@pytest.mark.parametrize("surplus", SURPLUS.values(), ids=SURPLUS.keys())
def test_what_a_producer_hides_behind_its_message_is_a_part_of_it(surplus: bytes) -> None:
    hidden = b"x\0\n" + surplus
    stream = ours(1) + ours(2, hidden, LENGTH) + ours(3) + receipt(4)
    if surplus.strip():
        assert shown(careful().feed(stream)) == [
            (b"MESSAGE", b"x", False),
            (b"MESSAGE", hidden, True),
            (b"MESSAGE", b"x", False),
            (b"RECEIPT", b"", False),
        ]
    else:  # line ends are no harm
        assert [body for _, body, _ in shown(careful().feed(ours(2, hidden, LENGTH)[:-2]))] == [b"x"]


@pytest.mark.parametrize("surplus", [each for each in SURPLUS.values() if each.strip()])
def test_however_it_is_split_nothing_forged_gets_through(surplus: bytes) -> None:
    """Was the message handed out before the rest came, then the connection ends, and the next one knows."""
    hidden = b"x\0\n" + surplus
    stream = ours(1) + ours(2, hidden, LENGTH) + ours(3) + receipt(4)
    for cut in range(len(stream)):
        suspects = SuspectIds()
        parser = careful(suspects)
        came = []
        try:
            came += parser.feed(stream[:cut])
            came += parser.feed(stream[cut:])
        except ForgedFrameError:
            assert b"m2" in suspects.identifiers
            came = careful(suspects).feed(stream)
        assert shown(came)[1:] == [
            (b"MESSAGE", hidden, True),
            (b"MESSAGE", b"x", False),
            (b"RECEIPT", b"", False),
        ]
    suspects = SuspectIds()
    suspects.add(b"m2")
    parser = careful(suspects)
    frames = [frame for at in range(len(stream)) for frame in parser.feed(stream[at : at + 1])]
    assert [frame.body for frame in frames] == [b"x", hidden, b"x", b""]


@pytest.mark.parametrize("told", [b"999", b"99999999999999999999", b"five", b"-1", b"", b"0"])
def test_a_length_that_is_too_great_or_none_swallows_nobody(told: bytes) -> None:
    parser = careful()
    frames = parser.feed(ours(1, b"good") + ours(2, b"bad", b"content-length:%b\n" % told))
    frames += parser.feed(b"\n")
    frames += parser.feed(ours(3, b"good"))
    frames += parser.feed(receipt(4))
    assert shown(frames) == [
        (b"MESSAGE", b"good", False),
        (b"MESSAGE", b"bad", True),
        (b"MESSAGE", b"good", False),
        (b"RECEIPT", b"", False),
    ]


def test_text_of_java_may_hold_the_end_of_a_frame() -> None:
    """It comes without a length: what follows shows where it ends."""
    frames = careful().feed(ours(1, b"a\0\nb\0\n\0\nc") + receipt(2))
    assert shown(frames) == [(b"MESSAGE", b"a\0\nb\0\n\0\nc", False), (b"RECEIPT", b"", False)]


def test_a_suspect_that_is_as_it_says_is_a_good_message() -> None:
    suspects = SuspectIds()
    suspects.add(b"m1")
    parser = careful(suspects)
    assert parser.feed(ours(1, b"x", LENGTH)) == []
    assert parser.unfinished
    assert shown(parser.feed(receipt(2))) == [(b"MESSAGE", b"x", False), (b"RECEIPT", b"", False)]


def test_an_error_that_names_nothing_is_believed_unless_a_told_length_comes_before() -> None:
    assert [frame.command for frame in careful().feed(ours(1) + ERRORS)] == [b"MESSAGE", b"ERROR"]
    text = ours(1, b"x", b"amq-msg-type:text\n" + LENGTH)
    assert shown(careful().feed(text + ERRORS + receipt(2))) == [
        (b"MESSAGE", b"x\0\n" + ERRORS[:-2], True),
        (b"RECEIPT", b"", False),
    ]


def test_a_forged_frame_without_a_message_before_it_ends_the_connection() -> None:
    for start in (b"", receipt(1)):
        with pytest.raises(ForgedFrameError, match=r"can't have sent b'RECEIPT.nreceipt-id:7"):
            careful().feed(start + b"RECEIPT\nreceipt-id:7\n\n\0\n")


def test_a_body_may_have_the_letters_of_our_ids_by_chance() -> None:
    parser, whole = careful(), ours(1, b"x" * 50 + TOKEN + b"x" * 50, b"content-length:111\n")
    assert parser.feed(whole[:-20]) == []
    assert not parser.is_doubtful
    assert shown(parser.feed(whole[-20:])) == [(b"MESSAGE", b"x" * 50 + TOKEN + b"x" * 50, False)]


def test_a_body_may_name_receipts_that_nobody_awaits() -> None:
    """Some brokers tell them to whoever gets the message for which they were asked."""
    text = b"x\0\nRECEIPT\nreceipt-id:told\n\n\0\n" * 50
    parser, whole = careful(), ours(1, text, b"content-length:%d\n" % len(text))
    for byte in range(len(whole) - 2):
        assert parser.feed(whole[byte : byte + 1]) == []
        assert not parser.is_doubtful
    assert shown(parser.feed(whole[-2:])) == [(b"MESSAGE", text, False)]


def test_of_two_lengths_none_is_believed() -> None:
    """RabbitMQ passes one on that a producer names twice, and puts its own behind it."""
    hidden = b"x\0\nERROR\nmessage:forged\n\nforged"
    head = ours(2, b"", b"content-length:1\ncontent-length:%d\n" % len(hidden)).removesuffix(b"\0\n")
    stream = ours(1) + head + hidden + b"\0\n" + receipt(3)
    for size in (1, 7, len(stream)):
        frames = in_pieces(careful(), stream, size)
        assert shown(frames) == [
            (b"MESSAGE", b"x", False),
            (b"MESSAGE", hidden, True),
            (b"RECEIPT", b"", False),
        ]
        assert frames[1].fault == "it has more than one content-length"


@pytest.mark.parametrize("swallowed", [ours(2, b"good"), receipt(2)])
def test_a_length_that_reaches_beyond_the_next_frame_swallows_nothing(swallowed: bytes) -> None:
    told = len(b"x\0\n" + swallowed) - 2
    stream = ours(1, b"x", b"content-length:%d\n" % told) + swallowed + receipt(3)
    for size in (1, 7, len(stream)):
        frames = in_pieces(careful(), stream, size)
        assert shown(frames)[0] == (b"MESSAGE", b"x", True)
        assert len(frames) == 3


def test_a_receipt_is_believed_once() -> None:
    asked = {TOKEN + b"1"}
    parser = careful()
    parser.believe_only(TOKEN, asked.__contains__)
    assert shown(parser.feed(receipt(1))) == [(b"RECEIPT", b"", False)]
    asked.clear()
    with pytest.raises(ForgedFrameError):
        parser.feed(receipt(1))


def test_a_name_as_subscription_is_proven_by_what_else_nobody_knows() -> None:
    parser = careful()
    parser.believe_only(TOKEN, is_asked, b"@@session-secret@@")
    head = b"MESSAGE\nsubscription:app.name\nack:T_app.name@@session-secret@@1\n\nx\0\n"
    assert [frame.body for frame in parser.feed(head)] == [b"x"]
    with pytest.raises(ForgedFrameError):
        parser.feed(head.replace(b"secret", b"guess"))


@pytest.mark.parametrize(
    "stream",
    [b"MESSAGE\ncontent-length:2000\n\n", b"MESSAGE\na:" + b"x" * 2000, b"MESSAGE\na:b\n\n" + b"x" * 2000],
    ids=["told", "head", "body"],
)
@pytest.mark.parametrize("size", [1, 100, 5000])
def test_a_frame_is_bounded(stream: bytes, size: int) -> None:
    parser = FrameParser()
    parser.limit = 1000
    with pytest.raises(FrameTooLargeError):
        parsed(parser, *(stream[at : at + size] for at in range(0, len(stream), size)))


def test_a_great_length_that_is_told_by_a_producer_is_bounded_too() -> None:
    parser = careful()
    parser.limit = 1000
    parser.feed(ours(1, b"x", b"content-length:1000000000000\n"))
    with pytest.raises(FrameTooLargeError, match=r"max_frame_size|more than 1000"):
        parsed(parser, *[b"x" * 100] * 20)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"MESSAGE\n", *([b"a:" + b"b" * 50 + b"\n"] * 40_000), b"\n\0"],
        [b"MESSAGE\ncontent-length:2000000\n\n", *([b"x" * 50] * 40_000), b"\0"],
        [b"MESSAGE\na:b\n\n", *([b"\n" * 50] * 40_000), b"\0"],
        [b"MESSAGE\r\na:b\r\n\r\nx\0" * 40_000],
        [b"\n" * 50] * 40_000,
    ],
    ids=["head", "body with a length", "body without", "carriage returns", "heart-beats"],
)
def test_small_pieces_are_not_looked_at_again_and_again(pieces: list[bytes]) -> None:
    parser = FrameParser()
    began = time.process_time()
    for piece in pieces:
        parser.feed(piece)
    assert time.process_time() - began < 5  # seconds where each piece cost as much as all before it: minutes
    assert not parser.unfinished


@pytest.mark.parametrize(
    ("head", "match"),
    [
        (b"\na:b" * (MAX_HEADERS + 1), "more than 10000 headers"),
        (b"\na:" + b"x" * MAX_HEADER_LINE, "a header has"),
        ((b"\na:" + b"x" * 5_000_000) * 4, "the headers have"),
    ],
)
def test_the_headers_of_a_message_are_bounded(head: bytes, match: str) -> None:
    with pytest.raises(PoisonMessageError, match=match):
        Frame(b"MESSAGE", head, b"").headers()


def test_suspects_are_bounded() -> None:
    suspects = SuspectIds()
    for number in range(2000):
        suspects.add(b"%d" % number)
    assert len(suspects.identifiers) == 1000
    assert b"1999" in suspects.identifiers
    assert b"0" not in suspects.identifiers


@pytest.mark.parametrize("head", [b"ERROR\nmessage:x\n", b"RECEIPT\nreceipt-id:" + TOKEN + b"1\n"])
def test_a_proof_in_each_piece_of_a_body_costs_nothing(head: bytes) -> None:
    """Only of a message may a producer have told the length: the others end where they say."""
    parser, piece = careful(), TOKEN.ljust(16 * 1024, b"x")
    began = time.process_time()
    parser.feed(head + b"content-length:%d\n\n" % (16 * 1024 * 1024))
    for _ in range(1024):
        assert parser.feed(piece) == []
    assert [len(frame.body) for frame in parser.feed(b"\0\n")] == [16 * 1024 * 1024]
    assert time.process_time() - began < 1  # it was 2, and 22 for twice as much


def test_a_wrong_receipt_in_each_piece_of_a_body_costs_nothing() -> None:
    parser, piece = careful(), b"\nreceipt-id:told\n".ljust(16 * 1024, b"x")
    began = time.process_time()
    parser.feed(ours(1, b"", b"content-length:%d\n" % (16 * 1024 * 1024)).removesuffix(b"\0\n"))
    for _ in range(1024):
        assert parser.feed(piece) == []
    assert [len(frame.body) for frame in parser.feed(b"\0\n")] == [16 * 1024 * 1024]
    assert time.process_time() - began < 1
