"""STOMP 1.2 frames: bytes in, frames out, and back. No I/O.

stomp.py's own parser decodes every body, replaces bytes that are not UTF-8 and keeps the first of two equal
headers whatever their meaning; at forty thousand frames a second it is also the bottleneck.

Source: STOMP 1.2, "Frames and Headers", "Repeated Header Entries".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from airflow_provider_jmsjca.errors import ConfigurationError, PermanentBrokerError, PoisonMessageError

SUBSCRIPTION: Final = b"\nsubscription:"
ACK: Final = b"\nack:"
RECEIPT_ID: Final = b"\nreceipt-id:"
BROWSER: Final = b"\nbrowser:"
_CONTENT_LENGTH: Final = b"\ncontent-length:"
_SERVER_COMMANDS: Final = frozenset({b"CONNECTED", b"MESSAGE", b"RECEIPT", b"ERROR"})
_MESSAGE: Final = b"MESSAGE\n"
_LONGEST_COMMAND: Final = 64
_END_OF_LINE: Final = b"\r\n"
_NEEDS_ESCAPE: Final = re.compile(r"[\\\n\r:]")
_COLON: Final = r"\c"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c"})
_ESCAPED: Final = re.compile(r"\\(.?)", re.DOTALL)
_UNESCAPES: Final = {"\\": "\\", "n": "\n", "r": "\r", "c": ":"}


class ProtocolError(PermanentBrokerError):
    """The peer doesn't speak STOMP 1.2, or broke its rules."""


class Frame:
    """A frame as it came, its headers still encoded.

    Attributes:
        command: `MESSAGE`, `RECEIPT`, `ERROR` or `CONNECTED`.
        head: The header lines, each with a line feed before it and none after the last.
        body: The body, untouched.
    """

    __slots__ = ("body", "command", "head")

    def __init__(self, command: bytes, head: bytes, body: bytes) -> None:
        self.command = command
        self.head = head
        self.body = body

    def first(self, mark: bytes) -> bytes | None:
        """Return the first value of a header as it stands on the wire, or `None`.

        Args:
            mark: The header's name between a line feed and a colon.
        """
        at = self.head.find(mark)
        if at < 0:
            return None
        at += len(mark)
        end = self.head.find(b"\n", at)
        return self.head[at:] if end < 0 else self.head[at:end]

    def last(self, mark: bytes) -> bytes | None:
        """Return the last value of a header, as `first` does."""
        at = self.head.rfind(mark)
        if at < 0:
            return None
        at += len(mark)
        end = self.head.find(b"\n", at)
        return self.head[at:] if end < 0 else self.head[at:end]

    def headers(self) -> dict[str, str]:
        """Return the decoded headers; the first of equal ones counts.

        Raises:
            PoisonMessageError: They are not UTF-8, or escaped in a way STOMP 1.2 forbids.
        """
        try:
            text = self.head.decode()
        except UnicodeDecodeError as error:
            raise PoisonMessageError(
                f"the headers are not UTF-8: byte {error.start} is no part of it"
            ) from error
        escaped = "\\" in text
        headers: dict[str, str] = {}
        for line in text.split("\n")[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise PoisonMessageError(f"the header line {line[:80]!r} has no colon")
            # Asked here, and not in `unescape`, because a call for each header would cost more than the rest.
            if escaped and "\\" in line:
                name, value = unescape(name), unescape(value)
            headers.setdefault(name, value)
        return headers


class FrameParser:
    """Cuts a stream of bytes into frames, however the stream was split.

    Attributes:
        end: What ends a body without content-length: NUL, or more where a broker lets NUL into such bodies.
    """

    def __init__(self, end: bytes = b"\0") -> None:
        self.end = end
        self._parts: list[bytes] = []
        self._size = 0
        self._need = 0
        self._until_end = False

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that `chunk` completes.

        Raises:
            ProtocolError: These bytes are not STOMP.
        """
        if self._parts:
            chunk = self._joined(chunk)
        frames: list[Frame] = []
        at = 0
        size = len(chunk)
        any_returns = b"\r" in chunk
        while True:
            while at < size and chunk[at] in _END_OF_LINE:
                at += 1
            if at == size:
                break
            end = chunk.find(b"\n\n", at)
            body_at = end + 2
            has_returns = any_returns and chunk.find(b"\r", at, size if end < 0 else end) >= 0
            if has_returns:
                end, body_at = _head_end(chunk, at)
            stop = -1 if end < 0 else self._body_end(chunk, at, end, body_at)
            if stop < 0:
                _check_command(chunk[at : at + _LONGEST_COMMAND])
                self._keep(chunk[at:], need=size - at + 1, until_end=end >= 0)
                break
            if stop >= size:
                self._keep(chunk[at:], need=stop + 1 - at)
                break
            if chunk[stop]:
                raise ProtocolError("a body goes on after its content-length")
            preamble = chunk[at:end]
            if has_returns:
                preamble = preamble.replace(b"\r\n", b"\n").removesuffix(b"\r")
            command, head = _commanded(preamble)
            frames.append(Frame(command, head, chunk[body_at:stop]))
            at = stop + 1
        return frames

    def _joined(self, chunk: bytes) -> bytes:
        """Return what was kept and this; nothing, and keep this too, where a frame needs more."""
        self._parts.append(chunk)
        self._size += len(chunk)
        if self._size < self._need or (self._until_end and self.end not in self._parts[-2][-1:] + chunk):
            return b""
        chunk = b"".join(self._parts)
        self._parts.clear()
        return chunk

    def _body_end(self, chunk: bytes, at: int, end: int, body_at: int) -> int:
        found = chunk.find(_CONTENT_LENGTH, at, end)
        if found < 0:
            return chunk.find(self.end, body_at)
        stop = chunk.find(b"\n", found + 1, end)
        value = chunk[found + len(_CONTENT_LENGTH) : end if stop < 0 else stop].strip()
        if not value.isdigit():
            raise ProtocolError(f"the content-length {value[:40]!r} is no number")
        return body_at + int(value)

    def _keep(self, unfinished: bytes, *, need: int, until_end: bool = False) -> None:
        self._parts.append(unfinished)
        self._size = len(unfinished)
        self._need = need
        self._until_end = until_end


def _head_end(chunk: bytes, at: int) -> tuple[int, int]:
    """Return where the headers end and where the body starts; (-1, ...) if that has not come yet."""
    end = chunk.find(b"\n\n", at)
    limit = len(chunk) if end < 0 else end
    if chunk.find(b"\r", at, limit) >= 0:
        early = chunk.find(b"\n\r\n", at, limit)
        if early >= 0:
            return early, early + 3
    return end, end + 2


def _check_command(start: bytes) -> None:
    command = start.split(b"\n", 1)[0].rstrip(b"\r")
    if command not in _SERVER_COMMANDS and (b"\n" in start or len(start) == _LONGEST_COMMAND):
        raise ProtocolError(f"the peer doesn't speak STOMP: it sent {start!r}")


def _commanded(preamble: bytes) -> tuple[bytes, bytes]:
    """Return the command and the head."""
    if preamble.startswith(_MESSAGE):
        return b"MESSAGE", preamble[len(_MESSAGE) - 1 :]
    at = preamble.find(b"\n")
    command, head = (preamble, b"") if at < 0 else (preamble[:at], preamble[at:])
    if command not in _SERVER_COMMANDS:
        raise ProtocolError(f"the peer doesn't speak STOMP: it sent {preamble[:_LONGEST_COMMAND]!r}")
    return command, head


def unescape(text: str) -> str:
    """Undo the escapes of a header name or value.

    Raises:
        PoisonMessageError: An escape that STOMP 1.2 doesn't know.
    """
    if "\\" not in text:
        return text
    if text.count("\\") == text.count("\\c"):  # colons are all there is in nearly every message id
        return text.replace("\\c", ":")
    return _ESCAPED.sub(_unescaped, text)


def _unescaped(match: re.Match[str]) -> str:
    try:
        return _UNESCAPES[match[1]]
    except KeyError:
        raise PoisonMessageError(f"a header is escaped with {match[0]!r}, which STOMP 1.2 forbids") from None


def escape(text: str) -> str:
    """Escape a header name or value."""
    return text.translate(_ESCAPES) if _NEEDS_ESCAPE.search(text) else text


def encode(command: str, headers: Iterable[tuple[str, str]], body: bytes = b"") -> bytes:
    """Return a frame ready to send.

    Raises:
        ConfigurationError: A header can't be sent: it holds NUL or half a surrogate pair.
    """
    return b"%b\n%b\n%b\0" % (command.encode(), encode_headers(headers), body)


def encode_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the lines of headers; errors are those of `encode`."""
    pairs = list(headers)
    lines = "".join([f"{name}:{value}\n" for name, value in pairs])
    count = len(pairs)
    # Counting is quicker than escaping every name and value, and few need it; ids have colons.
    if "\\" in lines or "\r" in lines or lines.count("\n") != count:
        needs_escape = _NEEDS_ESCAPE.search
        lines = "".join(
            [
                f"{escape(name)}:{escape(value)}\n" if needs_escape(name + value) else f"{name}:{value}\n"
                for name, value in pairs
            ]
        )
    elif lines.count(":") != count:
        lines = "".join(
            [f"{name.replace(':', _COLON)}:{value.replace(':', _COLON)}\n" for name, value in pairs]
        )
    if "\0" in lines:
        name = next(name for name, value in pairs if "\0" in name + value)
        raise ConfigurationError(f"the property {name!r} holds NUL, which STOMP can't carry in a header")
    try:
        return lines.encode()
    except UnicodeEncodeError as error:
        name = next(name for name, value in pairs if not _encodable(name + value))
        raise ConfigurationError(
            f"the property {name!r} holds half a surrogate pair: no Unicode text"
        ) from error


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
