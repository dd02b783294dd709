"""Sending outside units of work: pipelined, and confirmed to the last message."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    ConnectionLostError,
    InDoubtError,
    PermanentBrokerError,
)
from airflow_provider_jmsjca.transports.base import Outgoing
from airflow_provider_jmsjca.transports.stomp.units import TransactionUnit

if TYPE_CHECKING:
    from airflow_provider_jmsjca.transports.stomp.connection import StompConnection

_BULK: Final = 500


def send(connection: StompConnection, outgoing: Iterable[Outgoing]) -> int:
    """Send messages in bulks, and return how many; errors are those of `Connection.send`."""
    sent = 0
    messages = iter(outgoing)
    if not connection.is_up:
        raise ConnectionLostError("the connection is gone; nothing was sent")
    while bulk := list(itertools.islice(messages, _BULK)):
        if connection.dialect.bulk_transactions and len(bulk) > 1:
            _send_in_transaction(connection, bulk, sent)
        else:
            connection.send_confirmed(bulk, before=sent)
        sent += len(bulk)
    return sent


def _send_in_transaction(connection: StompConnection, bulk: list[Outgoing], before: int) -> None:
    unit = TransactionUnit(connection)
    try:
        for one in bulk:
            unit.send(one)
        unit.commit()
    except PermanentBrokerError as error:
        if not connection.is_up:
            raise PermanentBrokerError(
                f"one of the messages {before + 1} to {before + len(bulk)} was refused, so none of them was "
                f"sent: {error}"
            ) from error
        # Nothing of it is there: once more one by one, up to the message that was refused.
        for position, one in enumerate(bulk):
            connection.send_confirmed([one], before=before + position)
    except ConnectionLostError as error:
        raise InDoubtError(f"the connection was lost while sending: {error}") from error
    except ConfigurationError:
        unit.rollback()
        raise


def send_confirmed(
    connection: StompConnection, bulk: list[Outgoing], before: int, frames: list[bytes] | None
) -> None:
    """Send each with a receipt, pipelined, and wait for all."""
    if frames is None:
        frames = [connection.encode(one) for one in bulk]
    receipts = connection.replies.receipts(blame=not connection.dialect.errors_name_frames)
    asked: list[str] = []
    wire = connection.wire
    try:
        for frame in frames:
            asked.append(receipts.ask())
            # In large pieces, which don't wake the reader each time; the rest leaves before the waiting.
            if wire.append(_with_receipt(frame, asked[-1])):
                wire.flush()
        if frames:
            connection.wait(receipts)
    except PermanentBrokerError as error:
        which = asked.index(receipts.refused) if receipts.refused in asked else None
        name = "a message" if which is None else f"message {before + which + 1} to {bulk[which].destination}"
        raise PermanentBrokerError(f"{name} was refused: {error}") from error
    except ConnectionLostError as error:
        refusal = connection.limits.passed(max(map(len, frames), default=0))
        if refusal is not None:
            raise PermanentBrokerError(f"a message was refused: {refusal}") from error
        raise InDoubtError(f"the connection was lost while sending: {error}") from error


def _with_receipt(frame: bytes, receipt: str) -> bytes:
    return b"".join((b"SEND\nreceipt:", receipt.encode(), b"\n", memoryview(frame)[5:]))
