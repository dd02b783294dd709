"""The events that a driver reports to the delivery machine.

Numbers called `delivery` are the driver's: one for each message received, never used twice. `call` and `unit`
come from the machine's decisions. Events about calls and units that are over are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import RedeliveryHandling


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Begin, or begin again after a stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOpened:
    """`Connect` succeeded; nothing is subscribed yet, so this alone doesn't make the activation `Up`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOpened:
    """`OpenConsumer` succeeded: the broker has confirmed the subscriptions, and the activation is `Up`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectFailed:
    """`Connect` or `OpenConsumer` failed.

    Attributes:
        permanent: Trying again gives the same answer: wrong credentials, wrong selector.
        by_broker: The broker refuses; otherwise this package does, because messages are in doubt or the
            delivery is stopped.
        standby: Another client has the subscription, which is nothing to worry about.
        logged: A connector that serves many users has logged it.
    """

    failure: Failure
    permanent: bool = False
    by_broker: bool = True
    standby: bool = False
    logged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLost:
    """The connection is gone; the broker will deliver unsettled messages again.

    Attributes:
        failure: Why.
        logged: As in `ConnectFailed`.
    """

    failure: Failure | None = None
    logged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectAsked:
    """The connection is up and of no use any more: it is closed, and another one opened after a pause.

    Attributes:
        reason: For the log.
        logged: As in `ConnectFailed`.
    """

    reason: str
    logged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageArrived:
    """The consumer received a message.

    Attributes:
        message_id: Stable over redelivery and unique in this activation; `None` if the message has none: its
            count then lasts only as long as it stays in our hands.
        source: Which of the destinations it came from, by its place in `DeliverySettings.sources`.
        group: The message's JMSXGroupID: messages of a group are delivered one by one, in order.
        redelivered: The broker's flag. It may be about a failure. A broker's count says no more: it holds
            deliveries to processes that ended while the message only waited in them.
        parked: The count with which it was parked (`Park`) before it came back; `None` if it wasn't.
        in_progress: The message came from the in-progress queue.
        left: An earlier run put the message into the in-progress queue: its outcome is in doubt.
        undecodable: Why it can't be decoded: it is moved and never delivered.
        unsubscribed: Nobody subscribes to it: it is moved and never delivered.
        size: Bytes of memory that it takes; 0 for a small one, which counts by number alone.
        consumer: Number of the consumer that received it, if that consumer settles its messages in the order
            of arrival. One unit of work at a time takes them. `None`: any unit may take the message.
    """

    delivery: int
    message_id: str | None
    source: int = 0
    consumer: int | None = None
    group: str | None = None
    redelivered: bool = False
    parked: int | None = None
    in_progress: bool = False
    left: bool = False
    undecodable: Failure | None = None
    unsubscribed: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecorded:
    """`RecordAttempt` is done: this is the message's attempt number `attempt`, counted from 1.

    Attributes:
        in_doubt: The attempt before has an unknown outcome.
    """

    delivery: int
    attempt: int
    in_doubt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInDoubt:
    """`RecordAttempt` found that the attempt before has an unknown outcome: the message is put in limbo.

    Source: I12, I13.
    """

    delivery: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHandled:
    """`RecordAttempt` found that a handler is done with the message: it is settled and not delivered."""

    delivery: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptNotRecorded:
    """`RecordAttempt` failed; the message isn't delivered before it succeeds."""

    delivery: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerReturned:
    """The handler returned from `Deliver` or `DeliverEndOfBatch`."""

    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRaised:
    """The handler raised; its unit is rolled back, and the message counts as acknowledged (J197)."""

    call: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerNotCalled:
    """The handler was not called for `Deliver`: the connection was lost before, or the driver stops.

    The unit is rolled back, and it was no attempt at the message.
    """

    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackAsked:
    """The handler marked its unit for rollback, during the call or while the unit is held."""

    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The message of this call was acknowledged; has a meaning with hold-until-ack only."""

    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSet:
    """The handler left something for the next delivery of its message.

    Source: J169, J171.
    """

    call: int
    rollback_data: Mapping[str, str] | None = None
    handling: RedeliveryHandling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCommitted:
    """`CommitUnit`, `MoveMessage`, `DeleteMessage`, `Park` or `Stage` is done and durable."""

    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFailed:
    """The broker refused the unit: nothing of it happened, and its messages are still in our hands."""

    unit: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLost:
    """The connection was lost before it began: nothing of it happened, the broker delivers again."""

    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitInDoubt:
    """The connection was lost on the way: whether it happened is unknown."""

    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendAsked:
    """Deliver nothing more until `ResumeAsked`; running handlers finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeAsked:
    """Deliver again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """Stop the activation, from outside or by the handler (J172).

    While it stops already, it can only be told to be quicker.

    Attributes:
        reason: Logged, and repeated in `Stopped`.
        within: How long running handlers may take; after it they are left alone and rolled back.
        by_handler: A handler asks for the stop, not the owner of the activation.
    """

    reason: str
    within: timedelta = timedelta(seconds=30)
    by_handler: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """`DeliveryMachine.deadline` has passed."""


Event: TypeAlias = (
    Start
    | ConnectionOpened
    | ConsumerOpened
    | ConnectFailed
    | ConnectionLost
    | ReconnectAsked
    | MessageArrived
    | AttemptRecorded
    | AttemptNotRecorded
    | FoundHandled
    | FoundInDoubt
    | HandlerReturned
    | HandlerRaised
    | HandlerNotCalled
    | RollbackAsked
    | Acknowledged
    | StateSet
    | UnitCommitted
    | UnitFailed
    | UnitLost
    | UnitInDoubt
    | SuspendAsked
    | ResumeAsked
    | StopAsked
    | Tick
)
