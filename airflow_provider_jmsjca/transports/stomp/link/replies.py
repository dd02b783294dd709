"""Pending receipts, and the broker's answers to them.

Source: STOMP 1.2, "RECEIPT", "ERROR".
"""

from __future__ import annotations

import secrets
import threading
from time import monotonic

from airflow_provider_jmsjca.errors import (
    JmsError,
    PermanentBrokerError,
    ReplyTimeoutError,
)


class ReceiptGroup:
    """Receipts that are requested together and awaited together.

    Attributes:
        open: Ids of the pending receipts.
        blame: Whether an ERROR that names no pending receipt counts as an error of this group.
    """

    def __init__(self, replies: Replies, *, blame: bool) -> None:
        self._replies = replies
        self._condition = threading.Condition(threading.Lock())
        self.open: set[str] = set()
        self._progress = 0
        self._error: JmsError | None = None
        self._refused: str | None = None
        self.blame = blame

    @property
    def refused(self) -> str | None:
        """The receipt id that an ERROR named; `None`: no error, or one that names no receipt."""
        return self._refused

    def ask(self) -> str:
        """Return a new receipt id for a frame.

        Raises:
            ConnectionLostError: The connection is lost.
        """
        return self._replies.register(self, 1)[0]

    def ask_for(self, count: int) -> list[str]:
        """Return `count` new receipt ids; errors as for `ask`."""
        return self._replies.register(self, count)

    def wait(self, timeout: float, at_most: int = 0) -> None:
        """Wait until at most `at_most` receipts are pending.

        Args:
            timeout: Maximum seconds between two receipts.
            at_most: Number of receipts that may stay pending.

        Raises:
            PermanentBrokerError: The broker answered a frame of the group with an error.
            ReplyTimeoutError: No receipt arrived for `timeout` seconds.
            ConnectionLostError: The connection was lost.
        """
        with self._condition:
            seen, since = self._progress, monotonic()
            while self._error is None and len(self.open) > at_most:
                if self._progress != seen:
                    seen, since = self._progress, monotonic()
                left = since + timeout - monotonic()
                if left <= 0:
                    raise ReplyTimeoutError(f"the broker sent no receipt for {timeout:g} s")
                self._condition.wait(left)
            if self._error is not None:
                raise _again(self._error)

    def arrived(self, identifier: str) -> None:
        """Record a receipt."""
        self.open.discard(identifier)
        self._progress += 1
        if not self.open or not self._progress % 64:
            with self._condition:
                self._condition.notify_all()

    def failed(self, error: JmsError, identifier: str | None = None) -> None:
        """Record the failure of one receipt, or of all pending ones."""
        with self._condition:
            if self._error is None:
                self._error, self._refused = error, identifier
            self._condition.notify_all()


class Replies:
    """Maps the id of each pending receipt to its `ReceiptGroup`, the receipts that are awaited together.

    Ids are random, so that none can be derived from another: Artemis and RabbitMQ reveal the receipt id of a
    message to its receivers.

    Attributes:
        length: Number of random characters in an id; a multiple of four.
    """

    def __init__(self) -> None:
        self.length = 12
        self._waiting: dict[str, ReceiptGroup] = {}
        self._lock = threading.Lock()
        self._lost: JmsError | None = None

    def receipts(self, *, blame: bool = False) -> ReceiptGroup:
        """Return a new group of receipts.

        Args:
            blame: Whether an ERROR that names no pending receipt counts as an error of this group.
        """
        return ReceiptGroup(self, blame=blame)

    def register(self, receipts: ReceiptGroup, count: int) -> list[str]:
        """Return `count` new ids that belong to `receipts`."""
        asked: list[str] = []
        length = self.length
        with self._lock:
            if self._lost is not None:
                raise _again(self._lost)
            while (missing := count - len(asked)) > 0:
                letters = secrets.token_urlsafe(missing * length // 4 * 3)  # four of three bytes
                for at in range(0, missing * length, length):
                    drawn = letters[at : at + length]
                    if drawn not in self._waiting:
                        self._waiting[drawn] = receipts
                        receipts.open.add(drawn)
                        asked.append(drawn)
        return asked

    def is_asked(self, identifier: bytes) -> bool:
        """Return whether a receipt is pending."""
        return identifier.decode("ascii", "replace") in self._waiting

    def arrived(self, identifier: str) -> None:
        """Record a receipt; ignore an unknown one."""
        receipts = self._waiting.pop(identifier, None)
        if receipts is not None:
            receipts.arrived(identifier)

    def refused(self, identifier: str | None, error: PermanentBrokerError) -> bool:
        """Record an ERROR frame; return whether a pending receipt failed because of it."""
        with self._lock:
            if identifier is not None and identifier in self._waiting:
                self._waiting.pop(identifier).failed(error, identifier)
                return True
            blamed = {receipts for receipts in self._waiting.values() if receipts.blame}
            for receipts in blamed:
                receipts.failed(error)
            return bool(blamed)

    def lost(self, error: JmsError) -> None:
        """Fail all pending receipts, and refuse new ones."""
        with self._lock:
            self._lost = error
            waiting = set(self._waiting.values())
            self._waiting.clear()
        for receipts in waiting:
            receipts.failed(error)


def _again(error: JmsError) -> JmsError:
    """Return a copy to raise, because one exception object must not be raised in several threads."""
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
