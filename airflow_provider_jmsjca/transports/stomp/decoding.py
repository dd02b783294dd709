"""From MESSAGE frames to deliveries, whose messages are decoded when somebody asks for them."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_jmsjca.core.configuration.destination_options import broker_options
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import PoisonMessageError
from airflow_provider_jmsjca.transports.base import (
    ABOUT_US,
    Consumer,
    Received,
    Subscription,
    poisoned_by,
)
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
from airflow_provider_jmsjca.transports.stomp.dialects.java_bodies import TRANSFORMATION, with_map
from airflow_provider_jmsjca.transports.stomp.dialects.templates import Templates
from airflow_provider_jmsjca.transports.stomp.dialects.values import BODILESS, BODY_KIND
from airflow_provider_jmsjca.transports.stomp.spill import SpilledFrame
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame


class Decoder:
    """Decodes the frames that come for one subscription.

    Args:
        dialect: Decodes a frame, or salvages what can't be decoded.
        subscription: What the frames come for.
    """

    __slots__ = ("_bodiless", "_dialect", "_maps", "_subscription", "_templates")

    def __init__(self, dialect: Dialect, subscription: Subscription) -> None:
        self._dialect = dialect
        self._subscription = subscription
        self._templates = Templates(dialect)
        options = broker_options(subscription.destination)
        self._bodiless = options.get(BODILESS)
        self._maps = TRANSFORMATION in options

    def decode(self, frame: Frame, *, again: bool) -> JmsMessage:
        """Return the message.

        Args:
            frame: What came.
            again: It was handed out before, which the broker doesn't know: the message counts as redelivered.

        Raises:
            PoisonMessageError: It can't be decoded. Nothing else is raised, whatever the frame holds.
        """
        if frame.fault is not None:
            raise PoisonMessageError(f"the message isn't as it was sent: {frame.fault}")
        try:
            message = self._decode(frame)
        except ABOUT_US:
            raise
        except Exception as error:
            raise poisoned_by(error) from error
        return replace(message, redelivered=True) if again else message

    def _decode(self, frame: Frame) -> JmsMessage:
        unsaid = self._bodiless is not None and not frame.body
        alike = None if unsaid else self._templates.match(frame)
        if alike is not None:
            message = self._dialect.decode_alike(frame, *alike)
        else:
            headers = frame.headers()
            # An empty bytes message has a content-length: nothing was left out of it.
            if unsaid and "content-length" not in headers:
                headers.setdefault(BODY_KIND, self._bodiless or "")
            message = self._dialect.decode(frame, headers, self._subscription)
            if not unsaid:
                self._templates.learn(frame, headers, message)
        return with_map(message) if self._maps else message

    def salvage(self, frame: Frame) -> JmsMessage:
        """Return what can be kept of a message that can't be decoded; raises nothing, whatever it holds."""
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
            ConnectionLostError: It was large, was kept on disk, and can't be read back.
        """
        message = self._message
        if message is None:
            if isinstance(self._frame, SpilledFrame):
                # Not kept here: whoever looks ahead would have all of them in memory.
                return self._decoder.decode(self._frame.loaded(), again=self._again)
            message = self._message = self._decoder.decode(self._frame, again=self._again)
        return message

    @property
    def is_on_disk(self) -> bool:
        """Whether it is kept on disk, for memory is used up."""
        return isinstance(self._frame, SpilledFrame)

    @property
    def salvaged(self) -> JmsMessage | None:
        """A bytes message with the body as it came."""
        frame = self._frame
        return self._decoder.salvage(frame.loaded() if isinstance(frame, SpilledFrame) else frame)
