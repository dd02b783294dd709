"""Transactions begun ahead: the question whether all went well so far begins the next one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from airflow_provider_jmsjca.transports.stomp.dialects.settlement import UnitKind
from airflow_provider_jmsjca.transports.stomp.frames import encode

if TYPE_CHECKING:
    from airflow_provider_jmsjca.transports.stomp.connection import StompConnection


class Transactions:
    """The transactions of a connection that are begun and not used yet: one, or as many as units at once.

    STOMP has no frame that does nothing but ask for a receipt. An empty transaction that is begun and aborted
    is near to that, but ABORT costs ActiveMQ as much as fifty messages or more; BEGIN costs next to nothing,
    and somebody will need a transaction.
    """

    def __init__(self, connection: StompConnection) -> None:
        self._connection = connection
        self._begun: deque[str] = deque()

    def take(self) -> str | None:
        """Return a transaction that is begun, if there is one; give it back unless it is used."""
        try:
            return self._begun.popleft()
        except IndexError:
            return None

    def give_back(self, identifier: str) -> None:
        """Let somebody else use a transaction in which nothing happened."""
        self._begun.append(identifier)

    def ask(self, receipt: str) -> None:
        """Leave in the buffer what the broker answers with this receipt, and what is cheap.

        Raises:
            ConnectionLostError: The connection is gone.
        """
        wire = self._connection.wire
        spare = self.take()
        if spare is not None:  # no more of them than needed
            wire.append(_frame("ABORT", spare, receipt))
            return
        identifier = self._connection.new_transaction_id()
        if self._connection.dialect.unit_kind is UnitKind.TRANSACTION:
            wire.append(_frame("BEGIN", identifier, receipt))
            self._begun.append(identifier)
        else:
            wire.append(_frame("BEGIN", identifier) + _frame("ABORT", identifier, receipt))


def _frame(command: str, transaction: str, receipt: str | None = None) -> bytes:
    return encode(
        command, [("transaction", transaction), *(() if receipt is None else (("receipt", receipt),))]
    )
