"""Turns refusals of a broker into errors, and detects messages over its size limit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

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
# Checked first: the text contains the client id, which may contain any of the words above.
_IN_USE: Final = re.compile(r"InvalidClientIDException|\bClient: .* already connected\b", re.DOTALL)
# A client's address as Java prints it. Its port differs with each connection.
_CLIENT_PORT: Final = re.compile(r"(/(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9A-Fa-f:.]+\])):\d{1,5}\b")


class NoAnswerError(TransientBrokerError):
    """The broker ended a connection without accepting or refusing it."""


class SizeLimits:
    """Detects the message that exceeded a size limit of the broker.

    Brokers close the connection for such a message without naming it. The message is the largest sent on the
    connection, because the broker accepted all others. Senders of smaller messages can retry.

    Attributes:
        largest: Length in bytes of the largest frame; senders raise it before they send a larger one.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.largest = 0
        self._refusal: str | None = None

    def explained(self, text: str, ways_out: Mapping[str, str]) -> str:
        """Return the text of an ERROR, with advice if it is about a limit."""
        for mark, way_out in ways_out.items():
            if mark in text:
                self._refusal = f"{text} ({way_out})"
                return self._refusal
        return text

    def passed(self, largest: int) -> PermanentBrokerError | None:
        """Return the error if the caller's message caused the loss of the connection, else `None`.

        Args:
            largest: The length of the caller's longest frame, as in `largest`.
        """
        # The reader may not have read the broker's last ERROR yet.
        self._wire.join(_LAST_WORDS_SECONDS)
        if self._refusal is None or largest < self.largest:
            return None
        return PermanentBrokerError(f"the broker refused: {self._refusal}")


def connect_refusal(text: str | None, reason: JmsError | None) -> JmsError:
    """Return the error for a CONNECT that the broker did not answer with CONNECTED.

    While the reason stays the same, each attempt gets the same text. Logs and the registry of activations can
    therefore tell since when the broker refuses.

    Args:
        text: The text of the broker's ERROR; `None`: the broker sent none.
        reason: The reason why the connection ended; `None`: the connection has not ended.
    """
    if text is not None:
        text = _CLIENT_PORT.sub(r"\1", text)
        if _IN_USE.search(text):
            return ClientIdInUseError(f"the client id is in use: {text}")
        if _CREDENTIALS.search(text):
            return AuthenticationError(f"the broker refuses the credentials: {text}; check user and password")
        return TransientBrokerError(f"the broker refuses the connection: {text}")
    if isinstance(reason, ConnectionLostError):
        return NoAnswerError(f"{reason} before it sent CONNECTED")
    return reason or TransientBrokerError("it accepted the connection and sent nothing in time")


def error_text(headers: Mapping[str, str], body: bytes) -> str:
    """Return the text of an ERROR frame, shortened for logs."""
    message = headers.get("message", "")
    first = body.decode("utf-8", "backslashreplace").strip().partition("\n")[0].strip()
    text = message if first in message else f"{message}: {first}" if message else first
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
