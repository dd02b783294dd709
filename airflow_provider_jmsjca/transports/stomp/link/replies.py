"""What we asked the broker to confirm, and what it said.

Source: STOMP 1.2, "RECEIPT", "ERROR".
"""

from __future__ import annotations

import itertools
import string
import threading
from collections.abc import Iterator
from time import monotonic

from airflow_provider_jmsjca.errors import ConnectionLostError, JmsError, PermanentBrokerError
from airflow_provider_jmsjca.transports.stomp.wire.frames import ForgedFrameError

_ALPHABET = string.ascii_letters + string.digits + "-_"


class ReceiptTimeoutError(ConnectionLostError):
    """A receipt didn't come in time; the connection is not to be trusted any more."""


class ReceiptGroup:
    """Receipts asked for together, and waited for together."""

    def __init__(self, replies: Replies, *, blame: bool) -> None:
        self._replies = replies
        self._condition = threading.Condition(threading.Lock())
        self._open: set[str] = set()
        self._progress = 0
        self._error: JmsError | None = None
        self._refused: str | None = None
        self.blame = blame

    @property
    def refused(self) -> str | None:
        """The receipt id that was answered by an error."""
        return self._refused

    def is_open(self, identifier: str) -> bool:
        """Say whether a receipt has not come yet."""
        return identifier in self._open

    def ask(self) -> str:
        """Return a new receipt id to put on a frame.

        Raises:
            ConnectionLostError: The connection is gone.
        """
        return self.ask_for(1)[0]

    def ask_for(self, count: int) -> list[str]:
        """Return new receipt ids, as `ask` does."""
        identifiers = self._replies.register(self, count)
        self._open.update(identifiers)
        return identifiers

    def wait(self, timeout: float, at_most: int = 0) -> None:
        """Wait until no more than `at_most` are missing, for `timeout` seconds since the last one came.

        Raises:
            PermanentBrokerError: The broker answered one of them with an error.
            ReceiptTimeoutError: Time is up.
            ConnectionLostError: The connection was lost.
        """
        with self._condition:
            seen, since = self._progress, monotonic()
            while self._error is None and len(self._open) > at_most:
                if self._progress != seen:
                    seen, since = self._progress, monotonic()
                left = since + timeout - monotonic()
                if left <= 0:
                    raise ReceiptTimeoutError(f"the broker sent no receipt for {timeout:g} s")
                self._condition.wait(left)
            if self._error is not None:
                raise _again(self._error)

    def arrived(self, identifier: str) -> None:
        """Note a receipt."""
        self._open.discard(identifier)
        self._progress += 1
        if not self._open or not self._progress % 64:
            with self._condition:
                self._condition.notify_all()

    def failed(self, error: JmsError, identifier: str | None = None) -> None:
        """Note that one receipt, or every missing one, won't come."""
        with self._condition:
            if self._error is None:
                self._error, self._refused = error, identifier
            self._condition.notify_all()


class Replies:
    """Which receipt belongs to whom.

    Attributes:
        prefix: What all receipt ids begin with; a receipt for another is forged.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._numbers = _short_words()
        self._waiting: dict[str, ReceiptGroup] = {}
        self._lock = threading.Lock()
        self._lost: JmsError | None = None

    def receipts(self, *, blame: bool = False) -> ReceiptGroup:
        """Begin a group of receipts.

        Args:
            blame: Errors that don't say what caused them are put down to this group.
        """
        return ReceiptGroup(self, blame=blame)

    def register(self, receipts: ReceiptGroup, count: int) -> list[str]:
        """Return ids that lead to `receipts`."""
        prefix = self.prefix
        with self._lock:
            if self._lost is not None:
                raise _again(self._lost)
            identifiers = [prefix + word for word in itertools.islice(self._numbers, count)]
            self._waiting.update(dict.fromkeys(identifiers, receipts))
        return identifiers

    def arrived(self, identifier: str) -> None:
        """Note a receipt. One that nobody waits for any more is harmless.

        Raises:
            ForgedFrameError: The receipt was never asked for.
        """
        receipts = self._waiting.pop(identifier, None)
        if receipts is not None:
            receipts.arrived(identifier)
        elif not identifier.startswith(self.prefix):
            raise ForgedFrameError(
                f"the broker sent a receipt {identifier[:80]!r}, which this connection never asked for"
            )

    def refused(self, identifier: str | None, error: PermanentBrokerError) -> bool:
        """Note an ERROR frame; say whether somebody waits for it."""
        with self._lock:
            if identifier is not None and identifier in self._waiting:
                self._waiting.pop(identifier).failed(error, identifier)
                return True
            blamed = {receipts for receipts in self._waiting.values() if receipts.blame}
            for receipts in blamed:
                receipts.failed(error)
            return bool(blamed)

    def lost(self, error: JmsError) -> None:
        """Note that no more will come."""
        with self._lock:
            self._lost = error
            waiting = set(self._waiting.values())
            self._waiting.clear()
        for receipts in waiting:
            receipts.failed(error)


def _short_words() -> Iterator[str]:
    """Yield words without end, the short ones first: 64 of one character, 4,096 of two."""
    words = (itertools.product(_ALPHABET, repeat=length) for length in itertools.count(1))
    return map("".join, itertools.chain.from_iterable(words))


def _again(error: JmsError) -> JmsError:
    """Return a copy to raise: one exception object must not be raised in several threads."""
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
