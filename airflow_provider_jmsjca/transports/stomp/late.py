"""Acknowledgements that a unit of work sends together with its COMMIT: `TransactionUnit` says why."""

from __future__ import annotations

from collections import Counter

from airflow_provider_jmsjca.transports.base import Received
from airflow_provider_jmsjca.transports.stomp.acknowledging import ack
from airflow_provider_jmsjca.transports.stomp.consumer import StompConsumer


class LateAcknowledgements:
    """Those of one unit. Its lock guards `add`; the rest is called once nothing is added any more."""

    def __init__(self) -> None:
        self._received: list[Received] = []
        self._counts: Counter[StompConsumer] = Counter()

    @property
    def consumers(self) -> set[StompConsumer]:
        """Whose messages they are."""
        return set(self._counts)

    def add(self, received: Received, consumer: StompConsumer) -> None:
        """Add a message that `StompConsumer.claim` said to acknowledge late."""
        self._received.append(received)
        self._counts[consumer] += 1

    def frames(self, headers: bytes) -> bytes:
        """Return what acknowledges them, without those that the broker has back already."""
        return b"".join(
            ack(each.token, headers) for each in self._received if each.generation == each.consumer.generation
        )

    def end(self) -> None:
        """Give back the room they took at their consumers."""
        counts, self._counts = self._counts, Counter()
        for consumer, count in counts.items():
            consumer.late_is_over(count)
