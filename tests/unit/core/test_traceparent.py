"""The property `traceparent`, which anyone may write who can send."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.traceparent import valid_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (VALID, VALID),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-ff", f"00-{TRACE}-{SPAN}-ff"),
        (f"01-{TRACE}-{SPAN}-01", VALID),
        (f"cc-{TRACE}-{SPAN}-ff-what-the-future-brings", f"00-{TRACE}-{SPAN}-03"),
    ],
)
def test_a_valid_one_is_kept(value: str, kept: str) -> None:
    assert valid_traceparent(value) == kept
    assert JmsMessage.text("", {"traceparent": value}).traceparent == kept


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        VALID.upper(),
        f" {VALID}",
        f"{VALID} ",
        f"{VALID}\n",
        f"{VALID}-more",
        f"{VALID}0",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"01-{TRACE}-{SPAN}-01x",
        f"01-{TRACE}-{SPAN}-01-{'x' * 300}",
        f"00-{TRACE}-{SPAN}-0\u0661",
        f"00-{TRACE}-{SPAN}-01".replace("4", "\uff14"),
        VALID.encode(),
        None,
        17,
        True,
    ],
)
def test_a_malformed_one_is_dropped(value: object) -> None:
    assert valid_traceparent(value) is None


def test_a_message_without_one_has_none() -> None:
    assert JmsMessage.text("").traceparent is None
    assert JmsMessage.text("", {"traceparent": 17}).traceparent is None


_HEX = st.text("0123456789abcdef", min_size=1, max_size=40)


@given(st.text() | st.builds("-".join, st.lists(_HEX, min_size=3, max_size=6)))
def test_any_text_is_dropped_or_comes_out_in_the_strict_form(value: str) -> None:
    found = valid_traceparent(value)
    strict = re.fullmatch(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", value, re.ASCII)
    if strict is not None:
        assert found == value
    if found is not None:
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", found, re.ASCII)
        assert found[3:52] == value[3:52]


@given(
    st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.integers(0, 255), st.integers(0, 254), st.text()
)
def test_any_ids_are_kept(trace: int, span: int, flags: int, version: int, more: str) -> None:
    plain = f"{trace:032x}-{span:016x}-{flags:02x}"
    assert valid_traceparent(f"00-{plain}") == f"00-{plain}"
    later = f"{max(1, version):02x}-{plain}-{more}"
    expected = f"00-{plain[:-2]}{flags & 3:02x}" if len(later) <= 256 else None
    assert valid_traceparent(later) == expected
