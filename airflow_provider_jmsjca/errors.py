"""The error tree, split by the reaction of the caller.

::

    JmsError
    ├── ConfigurationError (also ValueError)   correct the configuration
    │   ├── CapabilityError                    or choose a broker that can do it
    │   └── StoreSchemaError                   bring the store's tables up to date
    ├── TransientBrokerError                   try again later
    │   ├── ClientIdInUseError                 wait until the other client is gone
    │   ├── ConnectionLostError                reconnect; unsettled messages are redelivered
    │   │   └── ReplyTimeoutError              reconnect; the broker may redeliver only after a while
    │   │       └── BlockedByBrokerError       free memory or disk at the broker
    │   └── InDoubtError                       reconnect; the unit may or may not have been committed
    ├── PermanentBrokerError                   stop: trying again gives the same answer
    │   ├── AuthenticationError                correct the credentials
    │   └── DeliveryStoppedError               a user must resume the activation first
    ├── PoisonMessageError                     dead-letter this message, continue with the next
    ├── TransientStoreError                    try again later; nothing was stored, so acknowledge nothing
    └── SpoolError                             look at the file it names; nothing was acknowledged
        ├── BatchInUseError                    another process is writing this batch: don't write it
        └── FencedError                        a newer attempt has taken over: stop without committing
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_jmsjca.escaping import escaped


class JmsError(Exception):
    """Base of every error that this package raises on purpose.

    The text may quote a producer or broker, and is printed in logs and terminals. Unprintable characters are
    therefore escaped, so that the text is one line.
    """

    def __str__(self) -> str:
        return escaped(super().__str__())


class ConfigurationError(JmsError, ValueError):
    """The configuration can't be used; nothing was sent or received.

    Attributes:
        faults: Every fault found, one sentence each, in the order of the input.
    """

    def __init__(self, faults: str | Iterable[str]) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("; ".join(self.faults))

    def __reduce__(self) -> tuple[type[ConfigurationError], tuple[tuple[str, ...]]]:
        """Pickle by the faults, so that another process gets the complete error."""
        return type(self), (self.faults,)


class CapabilityError(ConfigurationError):
    """The configuration asks for something this broker can't do over this transport."""


class StoreSchemaError(ConfigurationError):
    """The tables of the store are older or newer than this package; the text states the remedy."""


class TransientBrokerError(JmsError):
    """The broker can't carry out the call now; the same call may succeed later."""


class ClientIdInUseError(TransientBrokerError):
    """Another connection has this JMS client id; this client is a standby until that connection closes.

    Source: J204, W31.
    """


class ConnectionLostError(TransientBrokerError):
    """The connection is lost; the broker redelivers unsettled messages."""


class ReplyTimeoutError(ConnectionLostError):
    """The broker did not answer within `reply_timeout`; the connection was closed.

    Until the broker notices the close, it may keep the unsettled messages for this connection, and not
    deliver them to any other.
    """


class BlockedByBrokerError(ReplyTimeoutError):
    """The broker did not answer in time, although it sent heart-beats or messages over this connection.

    RabbitMQ causes this while its memory or disk alarm is on: it stops reading from connections that send.
    """


class InDoubtError(TransientBrokerError):
    """The connection was lost during a commit, and the outcome of the commit is unknown.

    Reconnect and recognise redelivered messages by their ids.
    """


class PermanentBrokerError(JmsError):
    """The broker refuses, and will refuse again."""


class AuthenticationError(PermanentBrokerError):
    """The broker refuses these credentials."""


class DeliveryStoppedError(PermanentBrokerError):
    """A handler or a user has stopped or drained this activation, and it was not resumed since.

    Source: J172.
    """


class PoisonMessageError(JmsError):
    """The message can't be processed, now or later; it belongs in the dead-letter destination."""


class TransientStoreError(JmsError):
    """The store can't be used now: missing, locked, full, read-only or damaged. The call stored nothing."""


class SpoolError(JmsError):
    """A file of the spool is missing, damaged, not of this batch, or can't be written; the text names it."""


class BatchInUseError(SpoolError):
    """Another writer holds this batch, or sealed the same segment first."""


class FencedError(SpoolError):
    """A newer attempt at the same batch has started, so this attempt must not commit."""
