"""What a broker says when it refuses, and whose message was too large for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from stomp.utils import Frame as StompFrame

from airflow_provider_jmsjca.errors import (
    AuthenticationError,
    ClientIdInUseError,
    ConnectionLostError,
    JmsError,
    PermanentBrokerError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.transports.stomp.wire.wire import Wire

_LONGEST_TEXT: Final = 500
_LAST_WORDS_SECONDS: Final = 5.0
_CREDENTIALS: Final = re.compile(
    r"password|passcode|log-?in|credential|authenticat|access refused|security error|not authori[sz]ed",
    re.IGNORECASE,
)
# It names the client id, which may hold any of the words above.
_IN_USE: Final = re.compile(r"InvalidClientIDException|\bClient: .* already connected\b", re.DOTALL)


class NoAnswerError(TransientBrokerError):
    """The broker ended a connection that it had neither taken nor refused."""


class SizeLimits:
    """Which message passed a limit of the broker.

    Brokers close the connection then, and don't say which message it was. It is the largest that was sent on
    it, for all others were taken; whoever sent smaller ones is not to blame, and tries again.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._largest = 0
        self._refusal: str | None = None

    def sending(self, size: int) -> None:
        """Note the length of a frame that is about to be sent."""
        self._largest = max(self._largest, size)

    def explained(self, text: str, ways_out: Mapping[str, str]) -> str:
        """Return the text of an ERROR with what helps, if it is about a limit."""
        for mark, way_out in ways_out.items():
            if mark in text:
                self._refusal = f"{text} ({way_out})"
                return self._refusal
        return text

    def passed(self, largest: int) -> PermanentBrokerError | None:
        """Return why the connection was lost, if it was by the message of whoever asks.

        Args:
            largest: The length of the longest frame it noted by `sending`.
        """
        # The reader may still have to read the broker's last words.
        self._wire.join(_LAST_WORDS_SECONDS)
        if self._refusal is None or largest < self._largest:
            return None
        return PermanentBrokerError(f"the broker refused: {self._refusal}")


def connect_refusal(text: str | None, reason: JmsError | None) -> JmsError:
    """Return why CONNECT got no CONNECTED.

    Args:
        text: What the broker said instead.
        reason: Why the connection ended, if it did.
    """
    if text is not None:
        if _IN_USE.search(text):
            return ClientIdInUseError(f"the client id is in use: {text}")
        if _CREDENTIALS.search(text):
            return AuthenticationError(f"the broker refuses the credentials: {text}; check user and password")
        return TransientBrokerError(f"the broker refuses the connection: {text}")
    if isinstance(reason, ConnectionLostError):
        return NoAnswerError(f"{reason} before it said CONNECTED")
    return reason or TransientBrokerError("it took the connection and said nothing in time")


def error_text(frame: StompFrame) -> str:
    """Return the text of an ERROR frame, cut to a length for logs."""
    message = frame.headers.get("message", "")
    first = bytes(frame.body or b"").decode("utf-8", "backslashreplace").strip().partition("\n")[0].strip()
    text = message if first in message else f"{message}: {first}" if message else first
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
