"""Sending outside units of work: pipelined, and confirmed to the last message.

While the broker works on one part, the next one is encoded and put on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_jmsjca.errors import ConnectionLostError, InDoubtError, PermanentBrokerError
from airflow_provider_jmsjca.transports.base import Outgoing
from airflow_provider_jmsjca.transports.stomp.units import TransactionUnit

if TYPE_CHECKING:
    from airflow_provider_jmsjca.transports.stomp.connection import StompConnection

_MOST_MESSAGES: Final = 1000
_MOST_CHARACTERS: Final = 4 * 1024 * 1024
_LARGE: Final = 1024 * 1024
"""The broker may refuse so large a message by closing the connection: nothing else is under way with it."""


class _Way(Protocol):
    def send(self, messages: list[Outgoing], before: int) -> None:
        """Encode all of them, or raise without sending one; then put them on their way."""

    def finish(self) -> None:
        """Wait until the broker has confirmed everything; after a failure there is nothing to wait for."""


def send(connection: StompConnection, outgoing: Iterable[Outgoing]) -> int:
    """Send messages, and return how many; errors are those of `Connection.send`.

    They go in parts: of one with a message that can't be encoded nothing is sent, of those before it all.
    """
    if not connection.is_up:
        raise ConnectionLostError("the connection is gone; nothing was sent")
    singly = _Singly(connection)
    way: _Way = _InTransactions(connection) if connection.dialect.bulk_transactions else singly
    sent = 0
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


def send_confirmed(connection: StompConnection, messages: list[Outgoing], frames: list[bytes]) -> None:
    """Send messages that are encoded already, each with a receipt, pipelined; wait for all."""
    singly = _Singly(connection)
    singly.send(messages, 0, frames)
    singly.finish()


class _Singly:
    """Each message is confirmed by itself."""

    def __init__(self, connection: StompConnection) -> None:
        self._connection = connection
        self._receipts = connection.replies.receipts(blame=not connection.dialect.errors_name_frames)
        self._asked: dict[str, tuple[int, Outgoing]] = {}
        self._largest = 0

    def send(self, messages: list[Outgoing], before: int, frames: list[bytes] | None = None) -> None:
        """Send with receipts, after the part before the last one is confirmed."""
        connection, receipts = self._connection, self._receipts
        if frames is None:
            frames = [connection.encode(one) for one in messages]
        wire = connection.wire

        def put() -> None:
            connection.wait(receipts, _MOST_MESSAGES)
            self._asked = {key: value for key, value in self._asked.items() if receipts.is_open(key)}
            self._largest = max(self._largest, *map(len, frames))
            connection.limits.sending(self._largest)
            try:
                for number, (one, frame) in enumerate(zip(messages, frames, strict=True), before + 1):
                    receipt = receipts.ask()
                    self._asked[receipt] = number, one
                    # In large pieces, which don't wake the reader each time.
                    if wire.append(b"SEND\nreceipt:%b\n%b" % (receipt.encode(), frame[5:])):
                        wire.flush()
                wire.flush()
            except ConnectionLostError:
                connection.wait(receipts)  # raises what the broker said last, if it did
                raise

        self._explained(put)

    def finish(self) -> None:
        """Wait for all receipts."""
        if self._asked:
            self._explained(lambda: self._connection.wait(self._receipts))
            self._asked.clear()

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
            refusal = self._connection.limits.passed(self._largest)
            if refusal is not None:
                raise PermanentBrokerError(f"a message was refused: {refusal}") from error
            raise InDoubtError(f"the connection was lost while sending: {error}") from error


@dataclass(slots=True, eq=False)
class _Bulk:
    """The messages of one transaction.

    Attributes:
        before: How many were sent before these.
        decided: COMMIT is on its way.
    """

    unit: TransactionUnit
    messages: list[Outgoing]
    before: int
    decided: bool = False


class _InTransactions:
    """Transactions of many messages, of which the broker commits one while it takes in the next."""

    def __init__(self, connection: StompConnection) -> None:
        self._connection = connection
        self._bulks: deque[_Bulk] = deque()

    def send(self, messages: list[Outgoing], before: int) -> None:
        """Send a transaction, and go on with those before it."""
        unit = TransactionUnit(self._connection)
        frames = [unit.encode(one) for one in messages]
        self._bulks.append(_Bulk(unit, messages, before))

        def put() -> None:
            unit.send_encoded(frames)
            unit.ask()
            if len(self._bulks) > 1 and self._bulks[0].decided:
                self._conclude()
            if len(self._bulks) > 1:
                self._decide()

        self._explained(put)

    def finish(self) -> None:
        """Commit what isn't yet."""

        def step() -> None:
            if not self._bulks[0].decided:
                self._decide()
            self._conclude()

        while self._bulks:
            self._explained(step)

    def _decide(self) -> None:
        self._bulks[0].unit.decide()
        self._bulks[0].decided = True

    def _conclude(self) -> None:
        self._bulks[0].unit.conclude()
        self._bulks.popleft()

    def _explained(self, step: Callable[[], None]) -> None:
        try:
            step()
        except PermanentBrokerError as error:
            if self._connection.is_up:
                self._once_more()
                return
            refused = self._too_large() or _refused(self._bulks[0], self._bulks[-1], str(error))
            self._give_up()
            raise refused from error
        except ConnectionLostError as error:
            too_large = self._too_large()
            self._give_up()
            raise too_large or InDoubtError(f"the connection was lost while sending: {error}") from error
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> list[_Bulk]:
        bulks = list(self._bulks)
        self._bulks.clear()
        for bulk in bulks:
            if not bulk.decided:
                bulk.unit.abandon()
        return bulks

    def _once_more(self) -> None:
        """Send one by one what the broker refused as a whole, up to the message that it refuses."""
        for bulk in self._give_up():
            for position, one in enumerate(bulk.messages):
                singly = _Singly(self._connection)
                singly.send([one], bulk.before + position)
                singly.finish()

    def _too_large(self) -> PermanentBrokerError | None:
        """Return which bulk the broker has closed the connection for, if it was for one."""
        for bulk in self._bulks:
            refusal = self._connection.limits.passed(bulk.unit.largest)
            if refusal is not None:
                first = self._bulks[0].before + 1
                doubt = f"; whether {first} to {bulk.before} were isn't known" if first <= bulk.before else ""
                return _refused(bulk, bulk, f"{refusal}{doubt}")
        return None


def _refused(first: _Bulk, last: _Bulk, why: str) -> PermanentBrokerError:
    return PermanentBrokerError(
        f"one of the messages {first.before + 1} to {last.before + len(last.messages)} was refused, so none "
        f"of them was sent: {why}"
    )
