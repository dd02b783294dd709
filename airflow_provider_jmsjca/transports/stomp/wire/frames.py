"""STOMP 1.2 frames: bytes in, frames out, and back. No I/O.

stomp.py's own parser decodes every body, replaces bytes that are not UTF-8 and keeps the first of two equal
headers whatever their meaning; at forty thousand frames a second it is also the bottleneck.

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
# What the next frame begins with, after the NUL of this one.
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
"""The most bytes that may come as the answer to CONNECT."""
MAX_HEAD: Final = 16 * 1024 * 1024
MAX_HEADERS: Final = 10_000
MAX_HEADER_LINE: Final = 8 * 1024 * 1024
"""What the headers of a message may have in bytes, in number, and in bytes of one: more is poison."""
_MOST_SUSPECTS: Final = 1000


class ProtocolError(PermanentBrokerError):
    """The peer doesn't speak STOMP 1.2, or broke its rules."""


class FrameTooLargeError(ProtocolError):
    """A frame passes the limit that is set for frames."""


class ForgedFrameError(ConnectionLostError):
    """A frame came that the broker can't have meant for this connection."""


class Frame:
    """A frame as it came, its headers still encoded.

    Attributes:
        command: `MESSAGE`, `RECEIPT`, `ERROR` or `CONNECTED`.
        head: The header lines, each with a line feed before it and none after the last.
        body: The body, untouched.
        key: The id of the subscription that a MESSAGE is for, or of a RECEIPT, as on the wire; `None` where
            it has to be looked for yet.
        fault: Why the message can't be believed, whatever its headers say; `None` for nearly all.
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
        """How many bytes head and body have."""
        return len(self.head) + len(self.body)

    def first(self, mark: bytes) -> bytes | None:
        r"""Return the first value of a header as it stands on the wire, or `None`.

        Args:
            mark: The header's name between a line feed and a colon, such as `b"\nmessage-id:"`. Without the
                line feed the end of a longer name would be found too, which a sender may have set.
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
            PoisonMessageError: The headers are not UTF-8, escaped in a way STOMP 1.2 forbids, too many or
                too long.
        """
        if len(self.head) > MAX_HEADERS:  # each line has a byte at least
            _check_size(self.head)
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


class BrokenFrame(Frame):
    """A MESSAGE whose length was told wrongly. Its body is all that came before the next frame.

    Args:
        head: As for every frame.
        body: Likewise.
        fault: Why the message can't be believed.
    """

    __slots__ = ("fault",)

    def __init__(self, head: bytes, body: bytes, fault: str) -> None:
        super().__init__(_MESSAGE, head, body)
        self.fault = fault


class SuspectIds:
    """Ids of messages after which came what the broker can't have sent. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._identifiers: OrderedDict[bytes, None] = OrderedDict()
        self.has = self._identifiers.__contains__

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._identifiers)

    def add(self, identifier: bytes) -> None:
        """Remember one more; beyond 1000 the oldest is forgotten."""
        with self._lock:
            self._identifiers[identifier] = None
            if len(self._identifiers) > _MOST_SUSPECTS:
                self._identifiers.popitem(last=False)


SUSPECTS: Final = SuspectIds()
"""Of the whole process: a message that ended one connection comes again over the next."""


class _Place(NamedTuple):
    """Where a message stands in what has come, its head, and where its body ends if its length is true."""

    at: int
    head: bytes
    body_at: int
    stop: int


class FrameParser:
    """Cuts a stream of bytes into frames, however the stream was split.

    Where one frame ends is what the broker says, and a broker may repeat what a producer has told it: part of
    a message would be taken for frames. So whatever comes must bear a proof, which no producer can know. A
    message in front of something without one is read again, up to the next frame with a proof: that is where
    it ends. Was it handed out already, then the connection ends, and the message is read like that when it
    comes again.

    Args:
        end: See below.
        suspects: Which messages to read like that at once.

    Attributes:
        end: What ends a body without content-length: NUL, or more where a broker lets NUL into such bodies.
        limit: The most bytes of a frame.
        proofs: One of these stands in each head, or the id of a receipt that is awaited; none before
            `believe_only` is called.
    """

    def __init__(self, end: bytes = b"\0", suspects: SuspectIds = SUSPECTS) -> None:
        self.end = end
        self.limit = sys.maxsize
        self.proofs: tuple[bytes, ...] = ()
        self._suspects = suspects
        self._parts: list[bytes] = []
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
        """Believe from now on only what names an id of ours, or bears another proof.

        Args:
            subscriptions: How the ids of subscriptions begin.
            is_asked: Whether a receipt of this id is awaited.
            proofs: What else stands only in frames of the broker's.
        """
        # With its mark, for a large body may have such short letters by chance.
        marked = SUBSCRIPTION + subscriptions
        # What nearly all frames are, by their first line; the two are equally long.
        self._kinds = {
            b"MESSAGE\n": (_MESSAGE, marked, len(SUBSCRIPTION)),
            b"RECEIPT\n": (_RECEIPT, RECEIPT_ID, len(RECEIPT_ID)),
        }
        self.proofs = (marked, *proofs)
        self._is_asked = is_asked

    @property
    def is_unfinished(self) -> bool:
        """Whether a frame has begun to come."""
        return bool(self._parts)

    @property
    def is_doubtful(self) -> bool:
        """Whether what has begun to come is a message that ends where the next frame begins."""
        return self._doubt

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that `chunk` completes.

        Raises:
            ProtocolError: These bytes are not STOMP.
            FrameTooLargeError: A frame is larger than may be.
            ForgedFrameError: A frame has no proof, and what came before it was handed out already.
        """
        if self._parts:
            chunk = self._joined(chunk)
        frames: list[Frame] = []
        at = 0
        before = -1
        size = len(chunk)
        self._blank = 0
        kinds = {} if self._doubt or self._suspects or b"\r" in chunk else self._kinds
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
                        # A body with the end of its frame and a proof in it has swallowed another.
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
        """Read a frame of any kind.

        Returns:
            Where it begins, if it is a message that can be read again, or -1; and where to go on, or -1 if
            more must come first.
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
            # Only of a message may a producer have told the length.
            self._keep(chunk[at:], need=stop + 1 - at, proof=command is _MESSAGE)
        return -1, -1

    def _joined(self, chunk: bytes) -> bytes:
        """Return what was kept and this; nothing, and keep this too, where a frame needs more."""
        self._parts.append(chunk)
        self._size += len(chunk)
        if not self._need or self._size < self._need:
            if not self._need and self._size > self.limit:
                raise _too_large(self._size, self.limit)
            chunk = self._last_bytes + chunk
            has_come = any(mark in chunk for mark in self._awaited)
            if not (has_come or (self._awaits_proof and self._proof_at(chunk, 0) >= 0)):
                self._last_bytes = chunk[-_LONGEST_MARK:]
                return b""
        chunk = b"".join(self._parts)
        self._parts.clear()
        return chunk

    def _keep(
        self, unfinished: bytes, awaited: tuple[bytes, ...] = (), *, need: int = 0, proof: bool = False
    ) -> None:
        """Keep the beginning of a frame until one of `awaited` comes, or a `proof`, or it is of `need` bytes.

        Raises:
            FrameTooLargeError: The frame is or will be larger than may be.
        """
        if max(need, len(unfinished)) > self.limit:
            raise _too_large(max(need, len(unfinished)), self.limit)
        self._parts.append(unfinished)
        self._size = len(unfinished)
        self._need = need
        self._awaited = awaited
        self._awaits_proof = proof
        self._last_bytes = unfinished[-_LONGEST_MARK:]

    def _head_end(self, chunk: bytes, at: int) -> tuple[int, int]:
        """Return where the headers end and where the body starts; (-1, ...) if that has not come yet."""
        if self._blank <= at:  # or it would be looked for again for each frame whose lines end otherwise
            found = chunk.find(b"\n\n", at)
            self._blank = len(chunk) if found < 0 else found
        early = chunk.find(b"\n\r\n", at, self._blank) if chunk.find(b"\r", at, self._blank) >= 0 else -1
        if early >= 0:
            return early, early + 3
        return (self._blank, self._blank + 2) if self._blank < len(chunk) else (-1, -1)

    def _body_end(self, chunk: bytes, at: int, end: int, body_at: int) -> int:
        """Return where the body ends; -1 if that has not come yet, `_NO_NUMBER` if nobody can tell."""
        found = chunk.find(_CONTENT_LENGTH, at, end)
        if found < 0:
            return chunk.find(self.end, body_at)
        stop = chunk.find(b"\n", found + 1, end)
        value = chunk[found + len(_CONTENT_LENGTH) : end if stop < 0 else stop].strip()
        if not value.isdigit() or len(value) > _MOST_DIGITS:
            return _NO_NUMBER
        # STOMP says that the first one counts. But only one of two is the broker's, and nobody knows which.
        if stop >= 0 and self.proofs and chunk.find(_CONTENT_LENGTH, stop, end) >= 0:
            return _NO_NUMBER
        return body_at + int(value)

    def _may_begin(self, chunk: bytes, at: int) -> bool:
        """Say whether a head that has not come whole may be one.

        Raises:
            ProtocolError: Everything is believed, and it is no head.
        """
        start = chunk[at : at + _LONGEST_COMMAND]
        command = start.split(b"\n", 1)[0].rstrip(b"\r")
        if command not in _SERVER_COMMANDS and (b"\n" in start or len(start) == _LONGEST_COMMAND):
            if not self.proofs:
                raise ProtocolError(f"the peer doesn't speak STOMP: it sent {start!r}")
            return False
        return not self.proofs or _SEAM.search(chunk, at) is None

    def _commanded(self, preamble: bytes) -> tuple[bytes, bytes]:
        """Return the command, empty if there is none like it, and the head.

        Raises:
            ProtocolError: There is none like it, and everything is believed.
        """
        at = preamble.find(b"\n")
        command, head = (preamble, b"") if at < 0 else (preamble[:at], preamble[at:])
        for each in (_MESSAGE, _RECEIPT):  # the very objects, which are quicker to compare
            if command == each:
                return each, head
        if command not in _SERVER_COMMANDS:
            if not self.proofs:
                raise ProtocolError(f"the peer doesn't speak STOMP: it sent {preamble[:_LONGEST_COMMAND]!r}")
            return b"", head
        return command, head

    def _is_proven(self, command: bytes, head: bytes, frames: list[Frame]) -> bool:
        """Say whether a head is the broker's. An ERROR needs to name nothing."""
        if not self.proofs:
            return True
        if not command or command == b"CONNECTED" or (0 in head and _SEAM.search(head)):
            return False
        if command == b"ERROR" and RECEIPT_ID not in head:
            last = frames[-1] if frames else self._last
            # Of a message like that its producer has told the length.
            return last is None or last.command != _MESSAGE or _TYPE_TOLD not in last.head
        if any(proof in head for proof in self.proofs):
            return True
        named = Frame(command, head, b"").first(RECEIPT_ID)
        return named is not None and self._is_asked(named)

    def _proof_at(self, chunk: bytes, start: int, end: int = sys.maxsize) -> int:
        """Return where the first proof stands, or -1."""
        places = [place for proof in self.proofs if (place := chunk.find(proof, start, end)) >= 0]
        receipt_at = chunk.find(RECEIPT_ID, start, end)
        if receipt_at >= 0:
            named = _RECEIPT_NAMED.finditer(chunk, receipt_at, end)
            places += next(([each.start()] for each in named if self._is_asked(each[1])), [])
        return min(places, default=-1)

    def _is_suspect(self, head: bytes) -> bool:
        found = Frame(_MESSAGE, head, b"").first(MESSAGE_ID)
        return found is not None and self._suspects.has(found)

    def _is_doubtful(self, chunk: bytes, message: _Place) -> bool:
        """Say whether the length of a message can't be true, or must not be believed."""
        if self._doubt or (self._suspects and self._is_suspect(message.head)):
            return True
        stop = message.stop
        is_whole = 0 <= stop < len(chunk)
        if stop == _NO_NUMBER or (not is_whole and stop + 1 - message.at > self.limit):
            return True
        if is_whole and chunk[stop]:
            return True
        return stop >= 0 and self._proof_at(chunk, message.body_at, stop) >= 0

    def _step_back(self, frames: list[Frame], chunk: bytes, before: int, at: int) -> int:
        """Read the message before what has no proof again, if it wasn't handed out yet.

        Returns:
            Where to go on; -1 if more must come first.

        Raises:
            ForgedFrameError: The message was handed out, or there is no message before.
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
            else f" after the message {named[:200]!r}, which is read with care from now on"
        )
        raise ForgedFrameError(
            f"the broker can't have sent {chunk[at : at + _LONGEST_SHOWN]!r} over this connection{after}"
        )

    def _read_again(self, frames: list[Frame], chunk: bytes, message: _Place) -> int:
        """Read a message up to the next frame with a proof; return where that is, or -1 if none has come.

        Raises:
            ForgedFrameError: The proof stands in no frame.
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
            raise ForgedFrameError(f"what follows a message is no frame: {chunk[at : at + _LONGEST_SHOWN]!r}")
        body = chunk[body_at:true_stop]
        if _CONTENT_LENGTH not in head or stop == true_stop:
            frames.append(Frame(_MESSAGE, head, body))
        else:
            frames.append(BrokenFrame(head, body, _fault_of(head, stop - body_at, len(body))))
        return following


def _fault_of(head: bytes, told: int, true: int | None = None) -> str:
    """Say what is wrong with the length that a head tells; negative: it is no number."""
    if told < 0:
        if head.count(_CONTENT_LENGTH) > 1:
            return "it has more than one content-length"
        value = (Frame(b"", head, b"").first(_CONTENT_LENGTH) or b"").strip()
        return f"the content-length {value[:40]!r} is no number"
    if true is None:
        return "a body goes on after its content-length"
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


def nack(token: bytes, headers: bytes = b"") -> bytes:
    """Return a NACK frame.

    Args:
        token: What it names. It goes back as it came, escapes and all, whether it is text or not.
        headers: Encoded lines of further headers.
    """
    return b"NACK\nid:%b\n%b\n\0" % (token, headers)


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
