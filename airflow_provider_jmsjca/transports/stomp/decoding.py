"""From MESSAGE frames to deliveries, whose messages are decoded when somebody asks for them."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports.base import Consumer, Received, Subscription
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
from airflow_provider_jmsjca.transports.stomp.frames import Frame
from airflow_provider_jmsjca.transports.stomp.likeness import Likeness


class Decoder:
    """Decodes the frames that come for one subscription.

    Args:
        dialect: Decodes a frame, or salvages what can't be decoded.
        subscription: What the frames come for.
    """

    __slots__ = ("_dialect", "_likeness", "_subscription")

    def __init__(self, dialect: Dialect, subscription: Subscription) -> None:
        self._dialect = dialect
        self._subscription = subscription
        self._likeness = Likeness(dialect)

    def decode(self, frame: Frame, *, again: bool) -> JmsMessage:
        """Return the message.

        Args:
            frame: What came.
            again: It was handed out before, which the broker doesn't know: the message counts as redelivered.

        Raises:
            PoisonMessageError: It can't be decoded.
        """
        alike = self._likeness.match(frame)
        if alike is None:
            headers = frame.headers()
            message = self._dialect.decode(frame, headers, self._subscription)
            self._likeness.learn(frame, headers, message)
        else:
            message = self._dialect.decode_alike(frame, *alike)
        return replace(message, redelivered=True) if again else message

    def salvage(self, frame: Frame) -> JmsMessage:
        """Return what can be kept of a message that can't be decoded."""
        return self._dialect.salvage(frame, self._subscription)


class ReceivedFrame(Received):
    """A delivery whose frame isn't looked into before its message is asked for.

    Args:
        consumer: Through which it can be settled.
        token: What ACK must name.
        generation: The consumer's.
        decoder: Of the subscription.
        frame: What came.
        again: As for `Decoder.decode`.
    """

    __slots__ = ("_again", "_decoder", "_frame")

    def __init__(  # noqa: PLR0917 - a call by position, once for each message
        self, consumer: Consumer, token: bytes, generation: int, decoder: Decoder, frame: Frame, again: bool
    ) -> None:
        self.consumer = consumer
        self.token = token
        self.generation = generation
        self._message = None
        self._decoder = decoder
        self._frame = frame
        self._again = again

    @property
    def message(self) -> JmsMessage:
        """The message.

        Raises:
            PoisonMessageError: It can't be decoded.
        """
        message = self._message
        if message is None:
            message = self._message = self._decoder.decode(self._frame, again=self._again)
        return message

    @property
    def salvaged(self) -> JmsMessage | None:
        """A bytes message with the body as it came."""
        return self._decoder.salvage(self._frame)
