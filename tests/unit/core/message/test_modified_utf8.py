"""Java's modified UTF-8, as ActiveMQ sends text over STOMP."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.message import modified_utf8
from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))

TABLE = (
    ("", b""),
    ("abc", b"abc"),
    ("\x00", b"\xc0\x80"),
    ("a\x00b", b"a\xc0\x80b"),
    ("é", b"\xc3\xa9"),
    ("€", b"\xe2\x82\xac"),
    ("😀", b"\xed\xa0\xbd\xed\xb8\x80"),
    ("\U0010ffff", b"\xed\xaf\xbf\xed\xbf\xbf"),
    ("x😀\x00é", b"x\xed\xa0\xbd\xed\xb8\x80\xc0\x80\xc3\xa9"),
)


@pytest.mark.parametrize(("text", "data"), TABLE)
def test_text_to_bytes_and_back(text: str, data: bytes) -> None:
    assert modified_utf8.encode(text) == data
    assert modified_utf8.decode(data) == text


@pytest.mark.parametrize("text", [text for text, _ in TABLE])
def test_plain_utf8_is_read_too(text: str) -> None:
    assert modified_utf8.decode(text.encode()) == text


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"ab\xff", "byte 2: .* found ff"),
        (b"\xc0\x80\xc0\x80\xff", "byte 4: .* found ff"),
        (b"a\xc0\x80\xc3", "byte 3: .* found c3"),
        (b"\xc0\xaf", "byte 0: .* found c0"),
        (b"\xed\xa0\xbd", "UTF-16 unit 0: .* lone surrogate"),
        (b"ab\xed\xb8\x80\xed\xa0\xbd", "UTF-16 unit 2: .* lone surrogate"),
    ],
)
def test_bytes_that_are_neither(data: bytes, place: str) -> None:
    with pytest.raises(PoisonMessageError, match=place):
        modified_utf8.decode(data)


def test_a_lone_surrogate_can_not_be_written() -> None:
    with pytest.raises(ConfigurationError, match="position 2"):
        modified_utf8.encode("a\ud800")


@given(st.text())
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_text_survives(text: str) -> None:
    data = modified_utf8.encode(text)
    assert b"\x00" not in data
    assert modified_utf8.decode(data) == text
    assert modified_utf8.decode(text.encode()) == text


@given(
    st.binary()
    | st.lists(st.sampled_from([b"\xc0\x80", b"\xed\xa0\xbd", b"\xed\xb8\x80", b"a"])).map(b"".join)
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_bytes_are_text_or_poison(data: bytes) -> None:
    try:
        text = modified_utf8.decode(data)
    except PoisonMessageError:
        return
    assert modified_utf8.decode(modified_utf8.encode(text)) == text
