"""Refusals of a broker: their text, and who is to blame when it closes because of a message's size."""

from __future__ import annotations

from typing import cast

from airflow_provider_jmsjca.transports.stomp.link.refusals import SizeLimits, connect_refusal
from airflow_provider_jmsjca.transports.stomp.wire.wire import Wire

WAYS_OUT = {"too long": "raise the limit"}


class EndedWire:
    """A wire whose reader has ended."""

    def join(self, timeout: float) -> None:
        """Return at once."""


def limits(*sizes: int) -> SizeLimits:
    made = SizeLimits(cast("Wire", EndedWire()))
    made.largest = max(sizes, default=0)
    return made


def test_the_largest_message_is_to_blame_and_no_other() -> None:
    made = limits(100, 5000, 700)
    assert (
        made.explained("that was too long for me", WAYS_OUT) == "that was too long for me (raise the limit)"
    )
    assert made.passed(700) is None
    assert str(made.passed(5000)) == "the broker refused: that was too long for me (raise the limit)"


def test_an_error_about_something_else_blames_nobody() -> None:
    made = limits(5000)
    assert made.explained("no such queue", WAYS_OUT) == "no such queue"
    assert made.passed(5000) is None


def test_a_refusal_has_the_same_text_at_each_attempt() -> None:
    """Artemis names the client's port, which differs."""
    for host in ("127.0.0.1", "[0:0:0:0:0:0:0:1]"):
        one, other = (
            str(connect_refusal(f"Unable to validate user from /{host}:{port}. Username: nina; login", None))
            for port in (40001, 7)
        )
        assert one == other
        assert f"from /{host}. Username: nina" in one
