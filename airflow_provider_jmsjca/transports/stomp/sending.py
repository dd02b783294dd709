"""Pipelined sending outside units of work; the broker confirms every message.

While the broker processes one batch, the next one is encoded and sent.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from airflow_provider_jmsjca.errors import (
    ConnectionLostError,
    InDoubtError,
    JmsError,
    PermanentBrokerError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Outgoing
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from airflow_provider_jmsjca.transports.stomp.units import TransactionUnit
from airflow_provider_jmsjca.transports.stomp.wire.wire import FLUSH_SIZE

_log = safe_logger(__name__)

_SEND: Final = b"SEND\n"
_MOST_MESSAGES: Final = 1000
_MOST_CHARACTERS: Final = 4 * 1024 * 1024
_LARGE: Final = 1024 * 1024
"""Number of characters from which a message is sent alone.

A broker may refuse a large message by closing the connection.
"""
_SECOND_CONNECTION_FROM: Final = 3
"""From the transaction of this number on, a second connection is used: for fewer it would take longer."""


class _SendStrategy(Protocol):
    def send(self, messages: list[Outgoing], before: int) -> None:
        """Encode all messages, then send them; after an encoding error, none of them is sent.

        Args:
            messages: The messages.
            before: Number of messages sent by earlier calls, for errors.
        """

    def finish(self) -> None:
        """Wait until the broker has confirmed all messages; return immediately after a failure."""

    def close(self) -> None:
        """Release the resources of the strategy."""


def send(link: Link, outgoing: Iterable[Outgoing]) -> int:
    """Send messages and return their number; raises the errors of `Connection.send`.

    Messages are sent in batches. If a message cannot be encoded, nothing of its batch is sent. All earlier
    batches are sent.
    """
    if not link.is_up:
        raise ConnectionLostError("the connection is gone; nothing was sent")
    singly = _ConfirmedSends(link)
    way: _SendStrategy = _TransactedSends(link) if link.dialect.bulk_transactions else singly
    sent = 0
    with contextlib.closing(way):
        try:
            for part in _parts(outgoing):
                if len(part) == 1:
                    way.finish()
                    singly.send(part, sent)
                    singly.finish()
                else:
                    way.send(part, sent)
                sent += len(part)
        finally:  # earlier batches are completed even after an error of the iterable or the encoder
            way.finish()
    return sent


def _parts(outgoing: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """Yield the messages in batches of bounded size, and each large message alone."""
    part: list[Outgoing] = []
    characters = 0
    for one in outgoing:
        body = one.message.body
        size = len(body) if isinstance(body, (str, bytes)) else 0
        for value in one.message.properties.values():
            if value.__class__ is str:
                size += len(value)
        if part and (len(part) == _MOST_MESSAGES or characters + size > _MOST_CHARACTERS or size > _LARGE):
            yield part
            part, characters = [], 0
        part.append(one)
        characters += size
        if size > _LARGE:
            yield part
            part, characters = [], 0
    if part:
        yield part


def send_confirmed(link: Link, messages: list[Outgoing], frames: list[bytes]) -> None:
    """Send encoded messages, pipelined, each with a receipt, and wait for all receipts."""
    singly = _ConfirmedSends(link)
    singly.send(messages, 0, frames)
    singly.finish()


def _pieces(frames: list[bytes]) -> Iterator[slice]:
    """Yield slices of frames to send together, large enough not to wake the reader too often."""
    start = size = 0
    for end, frame in enumerate(frames, 1):
        size += len(frame)
        if size >= FLUSH_SIZE or end == len(frames):
            yield slice(start, end)
            start, size = end, 0


class _ConfirmedSends:
    """Sends with one receipt for each message."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._receipts = link.replies.receipts(blame=not link.dialect.errors_name_frames)
        self._asked: dict[str, tuple[int, Outgoing]] = {}
        self._largest = 0

    def send(self, messages: list[Outgoing], before: int, frames: list[bytes] | None = None) -> None:
        """Wait until at most one batch is unconfirmed, then send messages with receipts.

        Args:
            messages: The messages.
            before: Number of messages sent by earlier calls, for errors.
            frames: The encoded messages; `None`: encode `messages`.
        """
        link, receipts = self._link, self._receipts
        if frames is None:
            frames = [link.encode(one) for one in messages]
        wire = link.wire

        def put() -> None:
            link.wait(receipts, _MOST_MESSAGES)
            self._asked = {key: value for key, value in self._asked.items() if key in receipts.open}
            self._largest = max(self._largest, *map(len, frames))
            link.limits.largest = max(link.limits.largest, self._largest)
            try:
                for piece in _pieces(frames):
                    asked = receipts.ask_for(len(frames[piece]))
                    numbered = enumerate(messages[piece], before + piece.start + 1)
                    self._asked.update(zip(asked, numbered, strict=True))
                    with_receipts = [
                        b"%breceipt:%b\n%b" % (_SEND, receipt.encode(), frame[len(_SEND) :])
                        for receipt, frame in zip(asked, frames[piece], strict=True)
                    ]
                    wire.append(b"".join(with_receipts))
                    wire.flush()
            except ConnectionLostError:
                link.wait(receipts)  # raises the broker's last ERROR, if there was one
                raise

        self._explained(put)

    def finish(self) -> None:
        """Wait for all receipts."""
        if self._asked:
            self._explained(lambda: self._link.wait(self._receipts))
            self._asked.clear()

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _explained(self, step: Callable[[], None]) -> None:
        try:
            step()
        except PermanentBrokerError as error:
            asked = self._asked.get(self._receipts.refused or "")
            self._asked.clear()
            name = "a message" if asked is None else f"message {asked[0]} to {asked[1].destination}"
            raise PermanentBrokerError(f"{name} was refused: {error}") from error
        except ConnectionLostError as error:
            self._asked.clear()
            refusal = self._link.limits.passed(self._largest)
            if refusal is not None:
                raise PermanentBrokerError(f"a message was refused: {refusal}") from error
            raise InDoubtError(f"the connection was lost while sending: {error}") from error


@dataclass(slots=True, eq=False)
class _TransactionBatch:
    """The messages of one transaction.

    Attributes:
        link: The link of the transaction.
        before: Number of messages sent before these.
        decided: Whether COMMIT was sent.
    """

    link: Link
    unit: TransactionUnit
    messages: list[Outgoing]
    before: int
    decided: bool = False

    def refusal(self) -> PermanentBrokerError | None:
        """Return the broker's refusal if it closed the connection because of one of these messages."""
        return self.link.limits.passed(self.unit.largest)


class _TransactedSends:
    """Sends in large transactions; the broker commits one while it receives the next.

    A broker serves each connection with one thread. So from the third transaction on, transactions alternate
    between two connections. COMMIT is sent only after the previous transaction is committed. This preserves
    the order: after any failure, the messages on the broker are a prefix of the sent ones, without gaps.
    """

    def __init__(self, link: Link) -> None:
        self._links = [link]
        self._bulks: deque[_TransactionBatch] = deque()
        self._transactions = 0

    def send(self, messages: list[Outgoing], before: int) -> None:
        """Send COMMIT of the previous transaction, then the new messages; see `_SendStrategy.send`."""
        self._transactions += 1
        if self._transactions == _SECOND_CONNECTION_FROM:
            self._connect()
        link = self._links[self._transactions % len(self._links)]
        if not link.is_up:  # the second connection was lost without an open transaction, so use the first
            link = self._links[0]
        unit = TransactionUnit(link)
        try:
            frames = unit.encode(messages)
        except BaseException:
            unit.abandon()
            raise
        bulk = _TransactionBatch(link, unit, messages, before)
        self._bulks.append(bulk)
        if self._bulks[0].decided:
            self._advance()  # waits for the COMMIT of the transaction before the previous one
        if len(self._bulks) > 1:
            self._advance()  # sends the COMMIT of the previous transaction

        def put() -> None:
            unit.send_encoded(frames)
            unit.ask()

        if self._bulks:  # if empty, a transaction was refused and these messages were sent one by one
            self._explained(bulk, put)

    def _connect(self) -> None:
        """Open the second connection; if that fails, send everything over the first."""
        first = self._links[0]
        try:
            second = first.another()
        except JmsError as error:
            _log.info(
                "Sending over one connection to %s, because it refuses a second one: %s", first.broker, error
            )
            return
        if second is not None:
            self._links.append(second)

    def finish(self) -> None:
        """Commit all open transactions."""
        while self._bulks:
            self._advance()

    def close(self) -> None:
        """Close the second connection."""
        for link in self._links[1:]:
            link.close()

    def _advance(self) -> None:
        """Advance the oldest transaction by one step: send its COMMIT, or wait until that is confirmed."""
        bulk = self._bulks[0]
        self._explained(bulk, self._conclude if bulk.decided else self._decide)

    def _decide(self) -> None:
        self._bulks[0].unit.decide()
        self._bulks[0].decided = True

    def _conclude(self) -> None:
        try:
            self._bulks[0].unit.conclude()
        except PermanentBrokerError:
            self._bulks[0].decided = False
            raise
        self._bulks.popleft()

    def _explained(self, bulk: _TransactionBatch, step: Callable[[], None]) -> None:
        try:
            step()
        except PermanentBrokerError as error:
            if not bulk.link.is_up:
                raise self._lost(bulk, error) from error
            self._once_more()
        except (ConnectionLostError, InDoubtError) as error:
            raise self._lost(bulk, error) from error
        except BaseException:
            self._give_up()
            raise

    def _lost(self, bulk: _TransactionBatch, error: JmsError) -> JmsError:
        """Abandon all open transactions after the loss of a batch's connection; return the error to raise."""
        oldest = self._bulks[0]
        if oldest.decided and oldest.link is not bulk.link:
            with contextlib.suppress(JmsError):  # after an error, this transaction is in doubt
                self._conclude()
        bulks = self._give_up()
        for each in bulks:
            # COMMIT is sent after the broker has accepted all messages of a batch, so a batch whose COMMIT
            # was sent is not the cause.
            asked = each.link is bulk.link and not each.decided
            refusal = each.refusal() if asked else None
            if refusal is not None:
                first = bulks[0].before + 1
                doubt = f"; whether {first} to {each.before} were isn't known" if first <= each.before else ""
                return _refused(each, each, f"{refusal}{doubt}")
        if isinstance(error, PermanentBrokerError) and not bulks[0].decided:
            return _refused(bulks[0], bulks[-1], str(error))
        text = str(error)
        return InDoubtError(
            text if isinstance(error, InDoubtError) else f"the connection was lost while sending: {text}"
        )

    def _give_up(self) -> list[_TransactionBatch]:
        bulks = list(self._bulks)
        self._bulks.clear()
        for bulk in bulks:
            if not bulk.decided:
                with contextlib.suppress(ConnectionLostError):  # a lost connection rolls it back anyway
                    bulk.unit.abandon()
        return bulks

    def _once_more(self) -> None:
        """Send the messages of refused transactions one by one, up to the message that the broker refuses."""
        for bulk in self._give_up():
            for position, one in enumerate(bulk.messages):
                singly = _ConfirmedSends(self._links[0])
                singly.send([one], bulk.before + position)
                singly.finish()


def _refused(first: _TransactionBatch, last: _TransactionBatch, why: str) -> PermanentBrokerError:
    return PermanentBrokerError(
        f"one of the messages {first.before + 1} to {last.before + len(last.messages)} was refused, so none "
        f"of them was sent: {why}"
    )
