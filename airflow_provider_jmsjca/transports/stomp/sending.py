"""Sending outside units of work: pipelined, and confirmed to the last message.

While the broker works on one part, the next one is encoded and put on its way.
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
"""The broker may refuse so large a message by closing the connection: nothing else is under way with it."""
_SECOND_CONNECTION_FROM: Final = 3
"""From which transaction on a second connection is worth its opening."""


class _SendStrategy(Protocol):
    def send(self, messages: list[Outgoing], before: int) -> None:
        """Encode all messages, or raise without sending one; then put them on their way."""

    def finish(self) -> None:
        """Wait until the broker has confirmed everything; after a failure there is nothing to wait for."""

    def close(self) -> None:
        """Give back what the way took for itself."""


def send(link: Link, outgoing: Iterable[Outgoing]) -> int:
    """Send messages, and return how many; errors are those of `Connection.send`.

    They go in parts: of one with a message that can't be encoded nothing is sent, of those before it all.
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
        finally:  # what was begun before a message that can't be had or encoded is not affected by it
            way.finish()
    return sent


def _parts(outgoing: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """Yield the messages in parts of a bounded size; large ones alone."""
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
    """Send messages that are encoded already, each with a receipt, pipelined; wait for all."""
    singly = _ConfirmedSends(link)
    singly.send(messages, 0, frames)
    singly.finish()


def _pieces(frames: list[bytes]) -> Iterator[slice]:
    """Yield which frames leave together: enough of them not to wake the reader too often, and no more."""
    start = size = 0
    for end, frame in enumerate(frames, 1):
        size += len(frame)
        if size >= FLUSH_SIZE or end == len(frames):
            yield slice(start, end)
            start, size = end, 0


class _ConfirmedSends:
    """Each message is confirmed by itself."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._receipts = link.replies.receipts(blame=not link.dialect.errors_name_frames)
        self._asked: dict[str, tuple[int, Outgoing]] = {}
        self._largest = 0

    def send(self, messages: list[Outgoing], before: int, frames: list[bytes] | None = None) -> None:
        """Send with receipts, after the part before the last one is confirmed."""
        link, receipts = self._link, self._receipts
        if frames is None:
            frames = [link.encode(one) for one in messages]
        wire = link.wire

        def put() -> None:
            link.wait(receipts, _MOST_MESSAGES)
            self._asked = {key: value for key, value in self._asked.items() if receipts.is_open(key)}
            self._largest = max(self._largest, *map(len, frames))
            link.limits.sending(self._largest)
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
                link.wait(receipts)  # raises what the broker said last, if it did
                raise

        self._explained(put)

    def finish(self) -> None:
        """Wait for all receipts."""
        if self._asked:
            self._explained(lambda: self._link.wait(self._receipts))
            self._asked.clear()

    def close(self) -> None:
        """There is nothing to give back."""

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
        link: What it travels on.
        before: How many were sent before these.
        decided: COMMIT is on its way.
    """

    link: Link
    unit: TransactionUnit
    messages: list[Outgoing]
    before: int
    decided: bool = False

    def refusal(self) -> PermanentBrokerError | None:
        """Return why the broker has closed the connection, if it was for one of these messages."""
        return self.link.limits.passed(self.unit.largest)


class _TransactedSends:
    """Transactions of many messages, of which the broker commits one while it takes in the next.

    A broker works on each connection with one thread, so from the third transaction on every other one goes
    over a second connection. COMMIT is said only when the transaction before is committed: the order stays,
    and whatever fails, what is there is a beginning without gaps.
    """

    def __init__(self, link: Link) -> None:
        self._links = [link]
        self._bulks: deque[_TransactionBatch] = deque()
        self._transactions = 0

    def send(self, messages: list[Outgoing], before: int) -> None:
        """Send a transaction, after the one before it is decided."""
        self._transactions += 1
        if self._transactions == _SECOND_CONNECTION_FROM:
            self._connect()
        link = self._links[self._transactions % len(self._links)]
        if not link.is_up:  # a second one on which nothing was under way: nothing is in doubt
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
            self._advance()  # concludes the last but one
        if len(self._bulks) > 1:
            self._advance()  # decides the last

        def put() -> None:
            unit.send_encoded(frames)
            unit.ask()

        if self._bulks:  # else they were sent already, one by one
            self._explained(bulk, put)

    def _connect(self) -> None:
        """Open the second connection; without it the first one does all."""
        first = self._links[0]
        try:
            second = first.another()
        except JmsError as error:
            _log.info(
                "Sending over one connection to %s, for it takes no second one: %s", first.broker, error
            )
            return
        if second is not None:
            self._links.append(second)

    def finish(self) -> None:
        """Commit what isn't yet."""
        while self._bulks:
            self._advance()

    def close(self) -> None:
        """Close the second connection."""
        for link in self._links[1:]:
            link.close()

    def _advance(self) -> None:
        """Take the oldest transaction one step on."""
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
        """Give up, and return what to say of it: the connection of this bulk is lost."""
        oldest = self._bulks[0]
        if oldest.decided and oldest.link is not bulk.link:
            with contextlib.suppress(JmsError):  # then it stays there, in doubt
                self._conclude()
        bulks = self._give_up()
        for each in bulks:
            # What is decided was taken in before its COMMIT: it isn't to blame.
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
                with contextlib.suppress(ConnectionLostError):  # then it is undone as well
                    bulk.unit.abandon()
        return bulks

    def _once_more(self) -> None:
        """Send one by one what the broker refused as a whole, up to the message that it refuses."""
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
