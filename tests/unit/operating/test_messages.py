"""Messages as a person reads them: complete, and nothing hidden."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca import JmsMessage
from airflow_provider_jmsjca.operating.messages import body_preview, message_view


def test_json_is_indented() -> None:
    view = message_view(JmsMessage.text('{"a": [1, 2.5], "b": "\u00fc"}'))
    assert (view.body_form, view.body) == ("json", '{\n  "a": [\n    1,\n    2.5\n  ],\n  "b": "\u00fc"\n}')


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"price": 0.10}',
        "[1e400]",
        "[-0]",
        "[12345678901234567890.5]",
        "{",
        "[" * 100_000,
    ],
)
def test_json_that_would_look_different_is_shown_as_text(text: str) -> None:
    view = message_view(JmsMessage.text(text))
    assert (view.body_form, view.body) == ("text", text)


def test_a_body_that_is_not_text_is_dumped() -> None:
    view = message_view(JmsMessage.bytes(b"\xffABC\n" + bytes(13)))
    assert view.body_form == "hex"
    assert view.body.splitlines() == [
        "00000000  ff 41 42 43 0a 00 00 00 00 00 00 00 00 00 00 00  .ABC............",
        "00000010  00 00                                            ..",
    ]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (JmsMessage.text("x" * 10 * 2**20), "x" * 57 + "..."),
        (JmsMessage.bytes(b"\xff" * 10 * 2**20), "f" * 57 + "..."),
        (JmsMessage.text(' {"a":\n 1} '), '{"a": 1}'),
        (JmsMessage.bytes(b"\xff\x00"), "ff00"),
    ],
)
def test_previews(message: JmsMessage, shown: str) -> None:
    assert body_preview(message) == shown


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (JmsMessage.text("abcdef"), ("text", "abc", 6, True)),
        (JmsMessage.text("abc"), ("text", "abc", 3, False)),
        (JmsMessage.text("[1, 2]"), ("text", "[1,", 6, True)),
        (JmsMessage.bytes("aéé".encode()), ("text", "aé", 5, True)),
        (JmsMessage.bytes("éé".encode()), ("text", "é", 4, True)),
        (JmsMessage.bytes("aé".encode()), ("text", "aé", 3, False)),
    ],
)
def test_of_a_long_body_the_beginning_is_shown(
    message: JmsMessage, shown: tuple[str, str, int, bool]
) -> None:
    view = message_view(message, limit=3)
    assert (view.body_form, view.body, view.body_bytes, view.body_cut) == shown
