"""Parses and encodes STOMP 1.2 frames. No I/O.

The parser of stomp.py is unsuitable: it decodes every body, replaces bytes that are not UTF-8, and always
keeps the first of repeated headers. At forty thousand frames a second it would also be the bottleneck.

Source: STOMP 1.2, "Frames and Headers", "Repeated Header Entries".
"""

from __future__ import annotations

import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    ConnectionLostError,
    PermanentBrokerError,
    PoisonMessageError,
)

SUBSCRIPTION: Final = b"\nsubscription:"
ACK: Final = b"\nack:"
RECEIPT_ID: Final = b"\nreceipt-id:"
BROWSER: Final = b"\nbrowser:"
MESSAGE_ID: Final = b"\nmessage-id:"
_CONTENT_LENGTH: Final = b"\ncontent-length:"
_TYPE_TOLD: Final = b"\namq-msg-type:"
_SERVER_COMMANDS: Final = frozenset({b"CONNECTED", b"MESSAGE", b"RECEIPT", b"ERROR"})
_MESSAGE: Final = b"MESSAGE"
_RECEIPT: Final = b"RECEIPT"
_LINE_LENGTH: Final = len(b"MESSAGE\n")
# Possible starts of the next frame, including the preceding byte.
_COMMAND_LINES: Final = tuple(
    before + command + b"\n" for before in (b"\n", b"\0") for command in (b"MESSAGE", b"RECEIPT", b"ERROR")
)
_RECEIPT_NAMED: Final = re.compile(rb"\nreceipt-id:([\w-]{1,40})\r?\n")
_SEAM: Final = re.compile(rb"[\0\n](?:MESSAGE|RECEIPT|ERROR)\r?\n")
_ENDS_OF_HEADS: Final = (b"\n\n", b"\n\r\n", *_COMMAND_LINES)
_LONGEST_COMMAND: Final = 64
_LONGEST_MARK: Final = 64
_LONGEST_SHOWN: Final = 80
_MOST_DIGITS: Final = 18
_NO_NUMBER: Final = -2
_END_OF_LINE: Final = b"\r\n"
_NEEDS_ESCAPE: Final = re.compile(r"[\\\n\r:]")
_COLON: Final = r"\c"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c"})
_ESCAPED: Final = re.compile(r"\\(.?)", re.DOTALL)
_UNESCAPES: Final = {"\\": "\\", "n": "\n", "r": "\r", "c": ":"}


MAX_GREETING: Final = 64 * 1024
"""Maximum bytes of the answer to CONNECT."""
MAX_HEAD: Final = 16 * 1024 * 1024
MAX_HEADERS: Final = 10_000
MAX_HEADER_LINE: Final = 8 * 1024 * 1024
"""Limits for the headers of a message: total bytes, number of headers, bytes of one header line.

A message that exceeds a limit is a poison message.
"""
_MOST_SUSPECTS: Final = 1000


class ProtocolError(PermanentBrokerError):
    """The peer doesn't speak STOMP 1.2, or violated the protocol."""


class FrameTooLargeError(ProtocolError):
    """A frame exceeds the size limit."""


class ForgedFrameError(ConnectionLostError):
    """The connection received a frame that the broker can't have sent on it."""


class Frame:
    """A received frame with encoded headers.

    Attributes:
        command: `MESSAGE`, `RECEIPT`, `ERROR` or `CONNECTED`.
        head: The header lines, each preceded by a line feed, with none after the last.
        body: The raw body.
        key: The encoded subscription id of a MESSAGE or receipt id of a RECEIPT; `None`: not extracted yet.
        fault: Why the message is untrustworthy; `None` for nearly all messages.
    """

    __slots__ = ("body", "command", "head", "key")
    fault: str | None = None

    def __init__(self, command: bytes, head: bytes, body: bytes, key: bytes | None = None) -> None:
        self.command = command
        self.head = head
        self.body = body
        self.key = key

    @property
    def size(self) -> int:
        """Length of head and body in bytes."""
        return len(self.head) + len(self.body)

    def first(self, mark: bytes) -> bytes | None:
        r"""Return the first value of a header, encoded as on the wire, or `None`.

        Args:
            mark: The header's name between a line feed and a colon, such as `b"\nmessage-id:"`. Without the
                line feed it would also match the end of a longer name, which a sender may have set.
        """
        at = self.head.find(mark)
        if at < 0:
            return None
        at += len(mark)
        end = self.head.find(b"\n", at)
        return self.head[at:] if end < 0 else self.head[at:end]

    def last(self, mark: bytes) -> bytes | None:
        """Return the last value of a header, encoded as on the wire, or `None`."""
        at = self.head.rfind(mark)
        if at < 0:
            return None
        at += len(mark)
        end = self.head.find(b"\n", at)
        return self.head[at:] if end < 0 else self.head[at:end]

    def headers(self) -> dict[str, str]:
        """Return the decoded headers; the first of repeated headers counts.

        Raises:
            PoisonMessageError: The headers are not UTF-8, use an escape that STOMP 1.2 forbids, or are too
                many or too long. Or a header line has no colon.
        """
        if len(self.head) > MAX_HEADERS:  # each line has at least one byte
            _check_size(self.head)
        try:
            text = self.head.decode()
        except UnicodeDecodeError as error:
            raise PoisonMessageError(f"the headers are not UTF-8: byte {error.start} is invalid") from error
        escaped = "\\" in text
        headers: dict[str, str] = {}
        for line in text.split("\n")[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise PoisonMessageError(f"the header line {line[:80]!r} has no colon")
            # Checked here, because calling `unescape` for each header would cost more than the whole loop.
            if escaped and "\\" in line:
                name, value = unescape(name), unescape(value)
            headers.setdefault(name, value)
        return headers


class BrokenFrame(Frame):
    """A MESSAGE with a wrong content-length. Its body extends to the next frame.

    Args:
        head: The header lines, as in `Frame`.
        body: The raw body, as in `Frame`.
        fault: Why the message is untrustworthy.
    """

    __slots__ = ("fault",)

    def __init__(self, head: bytes, body: bytes, fault: str) -> None:
        super().__init__(_MESSAGE, head, body)
        self.fault = fault


class SuspectIds:
    """Ids of messages that preceded a forged frame. Thread-safe.

    Attributes:
        identifiers: The ids, oldest first, encoded as on the wire.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.identifiers: OrderedDict[bytes, None] = OrderedDict()

    def add(self, identifier: bytes) -> None:
        """Add an id; beyond 1000 ids the oldest is dropped."""
        with self._lock:
            self.identifiers[identifier] = None
            if len(self.identifiers) > _MOST_SUSPECTS:
                self.identifiers.popitem(last=False)


SUSPECTS: Final = SuspectIds()
"""The suspect ids of the whole process.

All connections share them, because a message that ended one connection is redelivered over the next.
"""


class _Place(NamedTuple):
    """Offset of a message in the buffer, its head, and start and declared end of its body."""

    at: int
    head: bytes
    body_at: int
    stop: int


class FrameParser:
    """Splits a stream of bytes, in chunks of any size, into frames.

    A broker may pass on a content-length set by a producer. If that length is wrong, a part of the body would
    be read as frames. So every frame must contain a proof: bytes in its head that no producer can know, such
    as a random subscription id.

    If bytes without a proof follow a message, the parser reads the message again, up to the next frame with a
    proof. If the message was already delivered, the parser raises an error that ends the connection, and adds
    the message's id to `suspects`. When the message is redelivered, the parser doesn't trust its
    content-length: the body extends to the next frame with a proof.

    Args:
        end: Initial value of the attribute `end`.
        suspects: Ids of messages with a content-length that the parser doesn't trust.

    Attributes:
        end: Terminator of a body without content-length: NUL, or a longer sequence for a broker that allows
            NUL in such bodies.
        limit: Maximum bytes of a frame.
        proofs: Each head must contain one of these or the id of a pending receipt. Until `believe_only` is
            called, this is empty and every frame is trusted.
        unfinished: The received bytes of an incomplete frame; empty between frames.
    """

    def __init__(self, end: bytes = b"\0", suspects: SuspectIds = SUSPECTS) -> None:
        self.end = end
        self.limit = sys.maxsize
        self.proofs: tuple[bytes, ...] = ()
        self._suspects = suspects
        self.unfinished: list[bytes] = []
        self._size = 0
        self._need = 0
        self._awaited: tuple[bytes, ...] = ()
        self._awaits_proof = False
        self._is_asked: Callable[[bytes], bool] = frozenset().__contains__
        self._last_bytes = b""
        self._blank = 0
        self._doubt = False
        self._last: Frame | None = None
        self._kinds: dict[bytes, tuple[bytes, bytes, int]] = {}

    def believe_only(self, subscriptions: bytes, is_asked: Callable[[bytes], bool], *proofs: bytes) -> None:
        """From now on, trust only frames with a proof: an id of this client, or one of `proofs`.

        Args:
            subscriptions: Prefix of this client's subscription ids.
            is_asked: Returns whether a receipt with this id is pending.
            proofs: Other bytes that occur only in frames of the broker.
        """
        # With the header name, because a large body may contain the short prefix by chance.
        marked = SUBSCRIPTION + subscriptions
        # The kinds of nearly all frames, by their first line; both lines have the same length.
        self._kinds = {
            b"MESSAGE\n": (_MESSAGE, marked, len(SUBSCRIPTION)),
            b"RECEIPT\n": (_RECEIPT, RECEIPT_ID, len(RECEIPT_ID)),
        }
        self.proofs = (marked, *proofs)
        self._is_asked = is_asked

    @property
    def is_doubtful(self) -> bool:
        """Whether the incomplete frame is a message with an untrusted length.

        The body of such a message ends at the next frame with a proof.
        """
        return self._doubt

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that `chunk` completes.

        Raises:
            ProtocolError: The bytes are not STOMP frames.
            FrameTooLargeError: A frame exceeds the limit.
            ForgedFrameError: A frame has no proof, and the message before it was already delivered.
        """
        if self.unfinished:
            chunk = self._joined(chunk)
        frames: list[Frame] = []
        at = 0
        before = -1
        size = len(chunk)
        self._blank = 0
        kinds = {} if self._doubt or self._suspects.identifiers or b"\r" in chunk else self._kinds
        while at >= 0:
            while at < size and chunk[at] in _END_OF_LINE:
                at += 1
            if at == size:
                break
            kind = kinds.get(chunk[at : at + _LINE_LENGTH])
            if kind is not None and (end := chunk.find(b"\n\n", at)) >= 0:
                command, mark, length = kind
                head = chunk[at + _LINE_LENGTH - 1 : end]
                found = head.find(mark)
                if found >= 0 and 0 not in head:
                    stop = self._body_end(chunk, at, end, end + 2)
                    if (
                        0 <= stop < size
                        and not chunk[stop]
                        # A body that contains NUL and a proof includes another frame.
                        and (chunk.find(0, end, stop) < 0 or self._proof_at(chunk, end, stop) < 0)
                    ):
                        found += length
                        to = head.find(b"\n", found)
                        key = head[found:] if to < 0 else head[found:to]
                        if command is _MESSAGE or self._is_asked(key):
                            frames.append(Frame(command, head, chunk[end + 2 : stop], key))
                            before, at = at, stop + 1
                            continue
            before, at = self._next(frames, chunk, before, at)
        if frames:
            self._last = frames[-1] if frames[-1].command is _MESSAGE else None
        return frames

    def _next(self, frames: list[Frame], chunk: bytes, before: int, at: int) -> tuple[int, int]:
        """Read the frame of any kind at `at`, and append it to `frames`.

        Args:
            frames: The frames read from this chunk so far.
            chunk: The received bytes.
            before: As for `_step_back`.
            at: Offset of the frame.

        Returns:
            Two offsets in `chunk`. The first is the offset of the frame, for `_step_back`; -1 if no frame was
            appended, or if it is a message that was read again. The second is the offset to continue at; -1
            if more input is needed.
        """
        end, body_at = self._head_end(chunk, at)
        if end < 0:
            if not self._may_begin(chunk, at):
                return -1, self._step_back(frames, chunk, before, at)
            if b"\n" in chunk[at : at + _LONGEST_COMMAND]:
                self._keep(chunk[at:], _ENDS_OF_HEADS)
            else:
                self._keep(chunk[at:], (b"\n",), need=_LONGEST_COMMAND)
            return -1, -1
        preamble = chunk[at:end]
        if b"\r" in preamble:
            preamble = preamble.replace(b"\r\n", b"\n").removesuffix(b"\r")
        command, head = self._commanded(preamble)
        if not self._is_proven(command, head, frames):
            return -1, self._step_back(frames, chunk, before, at)
        message = _Place(at, head, body_at, self._body_end(chunk, at, end, body_at))
        if command is _MESSAGE and self.proofs and self._is_doubtful(chunk, message):
            return -1, self._read_again(frames, chunk, message)
        stop = message.stop
        if stop == _NO_NUMBER or (0 <= stop < len(chunk) and chunk[stop]):
            raise ProtocolError(_fault_of(head, stop - body_at))
        if 0 <= stop < len(chunk):
            frames.append(Frame(command, head, chunk[body_at:stop]))
            return at, stop + 1
        if stop < 0:
            self._keep(chunk[at:], (self.end,))
        else:
            # Only a message can have its length from a producer.
            self._keep(chunk[at:], need=stop + 1 - at, proof=command is _MESSAGE)
        return -1, -1

    def _joined(self, chunk: bytes) -> bytes:
        """Return the kept bytes with `chunk`; if the frame needs more input, keep both and return `b""`."""
        self.unfinished.append(chunk)
        self._size += len(chunk)
        if not self._need or self._size < self._need:
            if not self._need and self._size > self.limit:
                raise _too_large(self._size, self.limit)
            chunk = self._last_bytes + chunk
            has_come = any(mark in chunk for mark in self._awaited)
            if not (has_come or (self._awaits_proof and self._proof_at(chunk, 0) >= 0)):
                self._last_bytes = chunk[-_LONGEST_MARK:]
                return b""
        chunk = b"".join(self.unfinished)
        self.unfinished.clear()
        return chunk

    def _keep(
        self, unfinished: bytes, awaited: tuple[bytes, ...] = (), *, need: int = 0, proof: bool = False
    ) -> None:
        """Keep the start of an incomplete frame; parsing goes on once more of it has arrived.

        Args:
            unfinished: The bytes of the frame so far.
            awaited: Parsing goes on if one of these arrives.
            need: Parsing goes on if the frame has this number of bytes.
            proof: Whether parsing also goes on if one of `proofs` arrives.

        Raises:
            FrameTooLargeError: The frame exceeds or will exceed the limit.
        """
        if max(need, len(unfinished)) > self.limit:
            raise _too_large(max(need, len(unfinished)), self.limit)
        self.unfinished.append(unfinished)
        self._size = len(unfinished)
        self._need = need
        self._awaited = awaited
        self._awaits_proof = proof
        self._last_bytes = unfinished[-_LONGEST_MARK:]

    def _head_end(self, chunk: bytes, at: int) -> tuple[int, int]:
        """Return the end of the headers and the start of the body; (-1, -1) if the headers are incomplete."""
        if self._blank <= at:  # cached, so that frames with CRLF don't repeat the search
            found = chunk.find(b"\n\n", at)
            self._blank = len(chunk) if found < 0 else found
        early = chunk.find(b"\n\r\n", at, self._blank) if chunk.find(b"\r", at, self._blank) >= 0 else -1
        if early >= 0:
            return early, early + 3
        return (self._blank, self._blank + 2) if self._blank < len(chunk) else (-1, -1)

    def _body_end(self, chunk: bytes, at: int, end: int, body_at: int) -> int:
        """Return the end of the body; -1: not arrived yet; `_NO_NUMBER`: the content-length is unusable."""
        found = chunk.find(_CONTENT_LENGTH, at, end)
        if found < 0:
            return chunk.find(self.end, body_at)
        stop = chunk.find(b"\n", found + 1, end)
        value = chunk[found + len(_CONTENT_LENGTH) : end if stop < 0 else stop].strip()
        if not value.isdigit() or len(value) > _MOST_DIGITS:
            return _NO_NUMBER
        # In STOMP the first of repeated headers counts. But either of two lengths may come from the producer,
        # so none is trusted.
        if stop >= 0 and self.proofs and chunk.find(_CONTENT_LENGTH, stop, end) >= 0:
            return _NO_NUMBER
        return body_at + int(value)

    def _may_begin(self, chunk: bytes, at: int) -> bool:
        """Return whether an incomplete head may be valid.

        Raises:
            ProtocolError: The bytes are not a head, and all frames are trusted.
        """
        start = chunk[at : at + _LONGEST_COMMAND]
        command = start.split(b"\n", 1)[0].rstrip(b"\r")
        if command not in _SERVER_COMMANDS and (b"\n" in start or len(start) == _LONGEST_COMMAND):
            if not self.proofs:
                raise ProtocolError(f"the peer doesn't speak STOMP: it sent {start!r}")
            return False
        return not self.proofs or _SEAM.search(chunk, at) is None

    def _commanded(self, preamble: bytes) -> tuple[bytes, bytes]:
        """Return the command, empty if it is unknown, and the head.

        Raises:
            ProtocolError: The command is unknown, and all frames are trusted.
        """
        at = preamble.find(b"\n")
        command, head = (preamble, b"") if at < 0 else (preamble[:at], preamble[at:])
        for each in (_MESSAGE, _RECEIPT):  # return these objects, which callers compare by identity
            if command == each:
                return each, head
        if command not in _SERVER_COMMANDS:
            if not self.proofs:
                raise ProtocolError(f"the peer doesn't speak STOMP: it sent {preamble[:_LONGEST_COMMAND]!r}")
            return b"", head
        return command, head

    def _is_proven(self, command: bytes, head: bytes, frames: list[Frame]) -> bool:
        """Return whether the parser may trust a head: it has a proof, or all frames are trusted.

        An ERROR that names no receipt is trusted without a proof. The exception is an ERROR after a message
        whose producer may have set the content-length.
        """
        if not self.proofs:
            return True
        if not command or command == b"CONNECTED" or (0 in head and _SEAM.search(head)):
            return False
        if command == b"ERROR" and RECEIPT_ID not in head:
            last = frames[-1] if frames else self._last
            # The length of such a message comes from its producer.
            return last is None or last.command != _MESSAGE or _TYPE_TOLD not in last.head
        if any(proof in head for proof in self.proofs):
            return True
        named = Frame(command, head, b"").first(RECEIPT_ID)
        return named is not None and self._is_asked(named)

    def _proof_at(self, chunk: bytes, start: int, end: int = sys.maxsize) -> int:
        """Return the offset of the first proof (text that no producer can know), or -1."""
        places = [place for proof in self.proofs if (place := chunk.find(proof, start, end)) >= 0]
        receipt_at = chunk.find(RECEIPT_ID, start, end)
        if receipt_at >= 0:
            named = _RECEIPT_NAMED.finditer(chunk, receipt_at, end)
            places += next(([each.start()] for each in named if self._is_asked(each[1])), [])
        return min(places, default=-1)

    def _is_suspect(self, head: bytes) -> bool:
        found = Frame(_MESSAGE, head, b"").first(MESSAGE_ID)
        return found in self._suspects.identifiers

    def _is_doubtful(self, chunk: bytes, message: _Place) -> bool:
        """Return whether a message must be read up to the next frame with a proof, not by its content-length.

        The cases: the content-length is wrong, a proof is within the body, the message is suspect, or the
        parser is already reading the message in this way.
        """
        if self._doubt or (self._suspects.identifiers and self._is_suspect(message.head)):
            return True
        stop = message.stop
        is_whole = 0 <= stop < len(chunk)
        if stop == _NO_NUMBER or (not is_whole and stop + 1 - message.at > self.limit):
            return True
        if is_whole and chunk[stop]:
            return True
        return stop >= 0 and self._proof_at(chunk, message.body_at, stop) >= 0

    def _step_back(self, frames: list[Frame], chunk: bytes, before: int, at: int) -> int:
        """Read the previous message again: the bytes after it are a frame without a proof, or no frame.

        The message's content-length may be wrong, see `FrameParser`.

        Args:
            frames: The frames read from this chunk so far.
            chunk: The received bytes.
            before: Offset of the previous message; -1: it can't be read again.
            at: Offset of the bytes after it.

        Returns:
            The offset to continue at; -1 if more input is needed.

        Raises:
            ForgedFrameError: The previous message was already delivered, or there is no previous message.
        """
        if before >= 0 and frames[-1].command is _MESSAGE:
            message = frames.pop()
            self._blank = 0
            end, body_at = self._head_end(chunk, before)
            stop = self._body_end(chunk, before, end, body_at)
            return self._read_again(frames, chunk, _Place(before, message.head, body_at, stop))
        named = None
        if not frames and self._last is not None:
            named = self._last.first(MESSAGE_ID)
            if named is not None:
                self._suspects.add(named)
        after = (
            ""
            if named is None
            else f" after the message {named[:200]!r}, which is parsed more strictly from now on"
        )
        raise ForgedFrameError(
            f"the broker can't have sent {chunk[at : at + _LONGEST_SHOWN]!r} over this connection{after}"
        )

    def _read_again(self, frames: list[Frame], chunk: bytes, message: _Place) -> int:
        """Read a message again: its body now ends at the next frame that contains a proof.

        Returns:
            The offset of that next frame; -1 if it has not arrived yet.

        Raises:
            ForgedFrameError: The bytes with the proof don't belong to a frame.
        """
        at, head, body_at, stop = message
        proof_at = self._proof_at(chunk, body_at)
        if proof_at < 0:
            self._doubt = True
            self._keep(chunk[at:], proof=True)
            return -1
        self._doubt = False
        following = 1 + max(chunk.rfind(line, body_at, proof_at + 1) for line in _COMMAND_LINES)
        true_stop = chunk.rfind(b"\0", body_at, following)
        if true_stop < 0:
            raise ForgedFrameError(
                f"the bytes after a message are not a frame: {chunk[at : at + _LONGEST_SHOWN]!r}"
            )
        body = chunk[body_at:true_stop]
        if _CONTENT_LENGTH not in head or stop == true_stop:
            frames.append(Frame(_MESSAGE, head, body))
        else:
            frames.append(BrokenFrame(head, body, _fault_of(head, stop - body_at, len(body))))
        return following


def _fault_of(head: bytes, told: int, true: int | None = None) -> str:
    """Describe the fault of a message's content-length.

    Args:
        head: The header lines of the message.
        told: The declared length in bytes; negative if it is no number, or is declared twice.
        true: The length of the body in bytes; `None`: not known, but greater than `told`.
    """
    if told < 0:
        if head.count(_CONTENT_LENGTH) > 1:
            return "it has more than one content-length"
        value = (Frame(b"", head, b"").first(_CONTENT_LENGTH) or b"").strip()
        return f"the content-length {value[:40]!r} is no number"
    if true is None:
        return "the body is longer than its content-length"
    return f"its content-length is given as {told}, and the body has {true} bytes"


def _too_large(size: int, limit: int) -> FrameTooLargeError:
    return FrameTooLargeError(
        f"the broker sent a frame of {size} bytes or more; the option max_frame_size allows {limit}"
        if limit > MAX_GREETING
        else f"the peer answered CONNECT with more than {limit} bytes: it doesn't speak STOMP"
    )


def _check_size(head: bytes) -> None:
    if len(head) > MAX_HEAD:
        raise PoisonMessageError(f"the headers have {len(head)} bytes, more than {MAX_HEAD}")
    if head.count(b"\n") > MAX_HEADERS:
        raise PoisonMessageError(f"there are more than {MAX_HEADERS} headers")
    if len(head) > MAX_HEADER_LINE and (longest := max(map(len, head.split(b"\n")))) > MAX_HEADER_LINE:
        raise PoisonMessageError(f"a header has {longest} bytes, more than {MAX_HEADER_LINE}")


def unescape(text: str) -> str:
    """Undo the escapes of a header name or value.

    Raises:
        PoisonMessageError: STOMP 1.2 doesn't define an escape.
    """
    if "\\" not in text:
        return text
    if text.count("\\") == text.count("\\c"):  # nearly every message id escapes only colons
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
        ConfigurationError: A header can't be sent: it contains NUL or a lone surrogate.
    """
    return b"%b\n%b\n%b\0" % (command.encode(), encode_headers(headers), body)


def nack(token: bytes, headers: bytes = b"") -> bytes:
    """Return a NACK frame.

    Args:
        token: The id, sent unchanged: escaped input stays escaped. It may be any bytes.
        headers: Encoded lines of further headers.
    """
    return b"NACK\nid:%b\n%b\n\0" % (token, headers)


def encode_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the encoded header lines; errors as for `encode`."""
    pairs = list(headers)
    lines = "".join([f"{name}:{value}\n" for name, value in pairs])
    count = len(pairs)
    # Counting is faster than escaping each name and value. Few need escaping, mostly ids with colons.
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
