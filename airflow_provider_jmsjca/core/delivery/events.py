"""The events that a driver reports to the delivery machine.

The driver assigns the numbers called `delivery`: one for each received message, never used twice. The numbers
`call` and `unit` come from the machine's decisions. Events about calls and units that have ended are ignored.
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
    """Start the activation, also after a stop."""


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
        failure: The error.
        permanent: Whether a retry would fail in the same way, for example because of wrong credentials or a
            wrong selector.
        by_broker: Whether the broker refused. Otherwise this package did, because messages are in doubt or
            the delivery is stopped.
        standby: Whether another client has the subscription, which is a normal state.
        logged: Whether the failure is already in the log, because several users share the connection.
    """

    failure: Failure
    permanent: bool = False
    by_broker: bool = True
    standby: bool = False
    logged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLost:
    """The connection is lost; the broker will redeliver unsettled messages.

    Attributes:
        failure: The cause; `None` if unknown.
        logged: As in `ConnectFailed`.
    """

    failure: Failure | None = None
    logged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectAsked:
    """The connection is up but unusable: the machine closes it, and opens another one after a pause.

    Attributes:
        reason: The reason, for the log.
        logged: As in `ConnectFailed`.
    """

    reason: str
    logged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageArrived:
    """The consumer received a message.

    Attributes:
        delivery: Number of the delivery.
        message_id: Id that is stable across redeliveries and unique in this activation. `None` if the message
            has no id: its count is then kept only while the message is in flight.
        source: Index of the message's destination in `DeliverySettings.sources`.
        consumer: Number of the consumer that received the message, if that consumer settles its messages in
            the order of arrival. Only one unit of work at a time takes messages of such a consumer. `None`:
            any unit may take the message.
        group: The message's JMSXGroupID: messages of a group are delivered one by one, in order.
        redelivered: The broker's redelivered flag: an earlier delivery may have failed. A delivery
            count of the broker would not help: it includes deliveries to processes that ended before handling
            the message.
        parked: For a copy that returns after a delay (`Park`), its redelivery count when it was sent; `None`
            for any other message.
        in_progress: Whether the message came from the in-progress queue.
        left: Whether an earlier run put the message into the in-progress queue, so that its outcome is in
            doubt.
        undecodable: The error if the message can't be decoded. Such a message is moved and never delivered.
        unsubscribed: Whether no handler subscribes to the message. Such a message is moved and never
            delivered.
        size: Memory in bytes that the message takes; 0 for a small message, which is limited by number alone.
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
        in_doubt: Whether the previous attempt has an unknown outcome.
    """

    delivery: int
    attempt: int
    in_doubt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInDoubt:
    """`RecordAttempt` found a previous attempt of unknown outcome: the message is put in limbo.

    Source: I12, I13.
    """

    delivery: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHandled:
    """`RecordAttempt` found that the message was already handled: it is settled and not delivered."""

    delivery: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptNotRecorded:
    """`RecordAttempt` failed; the message isn't delivered before an attempt is recorded."""

    delivery: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerReturned:
    """The handler returned from `Deliver` or `DeliverEndOfBatch`."""

    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRaised:
    """The handler raised an exception; its unit is rolled back.

    With hold-until-ack, the unit doesn't wait for the acknowledgement of this message.

    Source: J197.
    """

    call: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerNotCalled:
    """The handler was not called for `Deliver`: the connection was lost before the call, or the driver stops.

    The unit is rolled back, and this does not count as an attempt at the message.
    """

    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackAsked:
    """The handler marked its unit for rollback, during the call or while the unit is held."""

    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The message of this call was acknowledged. Only used with hold-until-ack."""

    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSet:
    """The handler set rollback data or a redelivery handling for the next delivery of its message.

    Source: J169, J171.
    """

    call: int
    rollback_data: Mapping[str, str] | None = None
    handling: RedeliveryHandling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCommitted:
    """`CommitUnit`, `MoveMessage`, `DeleteMessage`, `Park` or `Stage` succeeded and is durable."""

    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFailed:
    """The broker refused the unit: it had no effect, and its messages are still in flight."""

    unit: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLost:
    """The connection was lost before the commit: the unit had no effect, and its messages are redelivered."""

    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitInDoubt:
    """The connection was lost during the commit, whose outcome is unknown."""

    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendAsked:
    """Suspend delivery until `ResumeAsked`; running handlers finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeAsked:
    """Resume delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """Stop the activation, requested by the code that runs it or by a handler.

    A further request during a stop can only shorten the time limit.

    Attributes:
        reason: The reason, logged and repeated in `Stopped`.
        within: Time limit for running handlers. After it they are abandoned, and their units are rolled back.
        by_handler: Whether a handler requested the stop.

    Source: J172.
    """

    reason: str
    within: timedelta = timedelta(seconds=30)
    by_handler: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The time `DeliveryMachine.deadline` has passed."""


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
