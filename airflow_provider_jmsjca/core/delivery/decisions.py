"""The decisions that the delivery machine returns to a driver, which carries them out in this order.

The driver answers each of these once, even if the connection is lost:

- `Deliver`, `DeliverEndOfBatch` with `HandlerReturned` or `HandlerRaised`, `Deliver` also with
  `HandlerNotCalled`;
- `CommitUnit`, `MoveMessage`, `DeleteMessage`, `Park`, `Stage` with `UnitCommitted`, `UnitFailed`,
  `UnitLost` or `UnitInDoubt`, and after the last two also says `ConnectionLost`;
- `RecordAttempt` with `AttemptRecorded`, `AttemptNotRecorded`, `FoundHandled` or `FoundInDoubt`;
- `Connect` with `ConnectionOpened` or `ConnectFailed`.

The rest needs no answer.
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
        clean: The connection is up, and nothing that was begun goes back to the broker.
    """

    clean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordAttempt:
    """Store durably that the message is about to be handed over."""

    delivery: int
    message_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Call the handler.

    Attributes:
        call: Names this call in later events.
        unit: Messages that the handler sends belong to this unit; deliveries of one batch share it, and one
            thread.
        seen: How often the message was seen before with the redelivered flag: 0 the first time.
        batch_index: How many messages of the batch came before.
        in_doubt: An earlier commit of this message has an unknown outcome: it came back, so it was not
            acknowledged, but its messages may have been sent.
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
        batch_index: How many messages the batch had.
        rollback: The batch is going to be rolled back.

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
    """Drop the messages that the handlers of this unit sent. The received ones stay in flight."""

    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The delivery is delayed: this slice now, `left` after it. For progress; `deadline` has the time.

    Source: J141, J146.
    """

    delivery: int
    pause: timedelta
    left: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """Have a copy delivered after `pause`, and acknowledge this delivery, in a unit of their own.

    The copy carries the message's own id and `seen`, which come back as `MessageArrived.parked`.
    """

    unit: int
    delivery: int
    pause: timedelta
    seen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Send the message to the in-progress queue, and acknowledge this delivery, in a unit of their own.

    The copy comes back as `MessageArrived.in_progress`.

    Source: I9.
    """

    unit: int
    delivery: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveMessage:
    """Send the message to the targets, and acknowledge this delivery, in a unit of their own.

    Attributes:
        redirect: Send it unchanged; otherwise send a copy that says where it came from and why.
        less: How many of the more faithful ways to make the copy are skipped (`dead_letter.letters`).
        state: For the copy: count, last exception, rollback data.
        to_limbo: Put the copies in limbo, from where they are sent to the targets. Without targets put the
            message itself there, as one that has failed for good.

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
    """Acknowledge this delivery unhandled: the configuration says so, or it is `repeated`: handled before."""

    unit: int
    delivery: int
    seen: int
    repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Leave the delivery unsettled at the broker; those after it are settled all the same."""

    delivery: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The activation has stopped; only `Start` begins again."""

    reason: str


class LogLevel(enum.StrEnum):
    """How loud a log line is."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Write a line to the log.

    Attributes:
        of_delivery: The line is about a delivery, and so it gets the context name. Source: J62.
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
