"""From MESSAGE frames to deliveries, whose messages are decoded when somebody asks for them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports.base import Consumer, Received, Subscription
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
from airflow_provider_jmsjca.transports.stomp.frames import Frame


class Decoder:
    """Makes deliveries of the frames that come for one subscription.

    Args:
        dialect: Decodes a frame, or salvages what can't be decoded.
        subscription: What the frames come for.
    """

    __slots__ = ("_decode", "_salvage", "_subscription")

    def __init__(self, dialect: Dialect, subscription: Subscription) -> None:
        self._decode = dialect.decode
        self._salvage = dialect.salvage
        self._subscription = subscription

    def received(
        self, consumer: Consumer, frame: Frame, token: bytes, generation: int, *, again: bool
    ) -> Received:
        """Return the delivery of a frame.

        Args:
            consumer: Through which it can be settled.
            frame: It isn't looked into before the message is asked for.
            token: What ACK must name.
            generation: The consumer's.
            again: It was handed out before, which the broker doesn't know: the message counts as redelivered.
        """
        decode = self._decode_again if again else self._decode
        subscription = self._subscription
        return Received(
            consumer,
            token,
            generation,
            partial(decode, frame, subscription),
            partial(self._salvage, frame, subscription),
        )

    def _decode_again(self, frame: Frame, subscription: Subscription) -> JmsMessage:
        return replace(self._decode(frame, subscription), redelivered=True)
