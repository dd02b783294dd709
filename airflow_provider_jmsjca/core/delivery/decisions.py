"""The decisions that the delivery machine returns; a driver carries them out in the returned order.

The driver answers each of the following decisions with exactly one event, even if the connection is lost:

- `Deliver` and `DeliverEndOfBatch` with `HandlerReturned` or `HandlerRaised`, `Deliver` also with
  `HandlerNotCalled`
- `CommitUnit`, `MoveMessage`, `DeleteMessage`, `Park` and `Stage` with `UnitCommitted`, `UnitFailed`,
  `UnitLost` or `UnitInDoubt`; after the last two, the driver also reports `ConnectionLost`
- `RecordAttempt` with `AttemptRecorded`, `AttemptNotRecorded`, `FoundHandled` or `FoundInDoubt`
- `Connect` with `ConnectionOpened` or `ConnectFailed`

The other decisions need no answer.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.redelivery import MessageState


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """Open a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenConsumer:
    """Start receiving on the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseConsumer:
    """Stop receiving; unsettled messages go back to the broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseConnection:
    """Close the connection, or give up opening one.

    Attributes:
        clean: Whether the connection is up, and every message that a unit has taken is settled. Only then may
            the driver delete a durable subscription.
    """

    clean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordAttempt:
    """Store durably that a handler is about to be called with the message."""

    delivery: int
    message_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Call the handler.

    Attributes:
        call: Number of this call in later events.
        unit: Number of the unit of work to which messages sent by the handler belong. Deliveries of one batch
            share the unit and a thread.
        delivery: Number of the delivery.
        seen: Redelivery count of the message: 0 on the first delivery.
        batch_index: Number of earlier messages in the batch.
        in_doubt: Whether an earlier commit with this message has an unknown outcome. The redelivery shows
            that the message was not acknowledged, but messages sent by its handler may have been committed.
        state: Notes of earlier deliveries: last exception, rollback data, handling.

    Source: J169-J171, J190, J191, J203.
    """

    call: int
    unit: int
    delivery: int
    seen: int
    batch_index: int
    in_doubt: bool
    state: MessageState


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverEndOfBatch:
    """Call the handler with the EndOfBatch message.

    Attributes:
        batch_index: Number of messages in the batch.
        rollback: Whether the batch will be rolled back.

    Source: J185, J186.
    """

    call: int
    unit: int
    batch_index: int
    rollback: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitUnit:
    """Acknowledge these deliveries and send the messages of their handlers, in one unit of work."""

    unit: int
    acknowledge: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBackUnit:
    """Discard the messages that the handlers of this unit sent; received messages stay in flight."""

    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Report that a delivery is delayed, as information about progress.

    The driver needs no timer for the delay: `DeliveryMachine.deadline` includes the end of the delay.

    Attributes:
        delivery: Number of the delivery.
        pause: Length of the slice that begins now; a long delay is split into slices.
        left: Rest of the delay after this slice.

    Source: J141, J146.
    """

    delivery: int
    pause: timedelta
    left: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """Send a copy that the broker delivers after `pause`, and acknowledge this delivery, in one unit.

    The copy carries the message's own id and the count `seen`. When it arrives, `MessageArrived.parked` has
    the count.
    """

    unit: int
    delivery: int
    pause: timedelta
    seen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Send the message to the in-progress queue, and acknowledge this delivery, in one unit.

    When the copy arrives, `MessageArrived.in_progress` is set.

    Source: I9.
    """

    unit: int
    delivery: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveMessage:
    """Send the message to the targets, and acknowledge this delivery, in one unit.

    Attributes:
        unit: Number of this unit.
        delivery: Number of the delivery.
        targets: The destinations to send to.
        redirect: Whether to send the message unchanged, instead of a copy with its origin and the reason of
            the move.
        state: Count, last exception and rollback data for the copy.
        less: Number of more complete versions of the copy to skip (`dead_letter.send_letter`).
        to_limbo: Whether to put the copies in limbo (kept in the store), from where they are sent to the
            targets. Without targets, the message itself is put there as failed.

    Source: J145, J149-J167, P15, P16.
    """

    unit: int
    delivery: int
    targets: tuple[Destination, ...]
    redirect: bool
    state: MessageState
    less: int = 0
    to_limbo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteMessage:
    """Acknowledge this delivery without calling the handler.

    Attributes:
        unit: Number of this unit.
        delivery: Number of the delivery.
        seen: Redelivery count of the message.
        repeated: Whether the message was handled before. Otherwise the configuration requires the deletion.
    """

    unit: int
    delivery: int
    seen: int
    repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Leave the delivery unsettled at the broker; later deliveries are settled as usual."""

    delivery: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The activation has stopped; only the event `Start` starts it again."""

    reason: str


class LogLevel(enum.StrEnum):
    """Level of a log line."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Write a line to the log.

    Attributes:
        of_delivery: Whether the line is about a delivery, so that the context name is added. Source: J62.
    """

    level: LogLevel
    text: str
    of_delivery: bool = False


Decision: TypeAlias = (
    Connect
    | OpenConsumer
    | CloseConsumer
    | CloseConnection
    | RecordAttempt
    | Deliver
    | DeliverEndOfBatch
    | CommitUnit
    | RollBackUnit
    | Wait
    | Park
    | Stage
    | MoveMessage
    | DeleteMessage
    | Leave
    | Stopped
    | Log
)
