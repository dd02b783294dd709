"""Messages whose subscription ended before they were settled, on brokers that keep them until the end."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.transports.base import Subscription
from airflow_provider_jmsjca.transports.stomp.frames import Frame, encode
from airflow_provider_jmsjca.transports.stomp.replies import Receipts

if TYPE_CHECKING:
    from airflow_provider_jmsjca.transports.stomp.connection import StompConnection


class Orphans:
    """Hands messages back through a subscription of its own, the keeper, made when first needed.

    The keeper listens to a topic nobody sends to.

    Attributes:
        last: The last message that came over the connection; set by the reader.
    """

    def __init__(self, connection: StompConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._keeper: str | None = None
        self._before: Frame | None = None
        self._since = 0
        self._swallowed: Receipts | None = None
        self.last: Frame | None = None

    def swallowed(self, error: str) -> bool:
        """Hand back a message that the broker says it delivered into the void; say whether it did."""
        if self.last is not self._before:
            self._before, self._since = self.last, 0
        token = self._connection.dialect.swallowed(error, self.last, self._since)
        if token is None:
            return False
        self._since += 1
        with self._lock:
            if self._swallowed is None:
                self._swallowed = self._connection.replies.receipts()
            receipt = self._swallowed.ask()
        self._return(token, receipt)
        return True

    def hand_back(self, tokens: list[bytes]) -> None:
        """Hand messages back; wait until they are, and what was swallowed meanwhile too.

        The broker says what it swallowed before it answers anything that is asked after UNSUBSCRIBE.

        Raises:
            PermanentBrokerError: The broker refused.
            ConnectionLostError: The connection was lost, which hands them back too.
        """
        receipts = self._connection.replies.receipts(blame=True) if tokens else self._connection.ask()
        for token in tokens:
            self._return(token, receipts.ask())
        self._connection.wait(receipts)
        with self._lock:
            swallowed, self._swallowed = self._swallowed, None
        if swallowed is not None:
            self._connection.wait(swallowed)

    def _return(self, token: bytes, receipt: str) -> None:
        dialect, wire = self._connection.dialect, self._connection.wire
        with self._lock:
            if self._keeper is None:
                self._keeper = f"keeper-{uuid.uuid4().hex}"
                topic = Destination.topic(self._keeper)
                headers = dialect.subscribe(Subscription(destination=topic), None)
                headers |= {"id": self._keeper, "ack": "client-individual"}
                wire.append(encode("SUBSCRIBE", headers.items()))
            nack = [("id", dialect.orphan(token, self._keeper)), ("receipt", receipt)]
        wire.write(encode("NACK", nack))
