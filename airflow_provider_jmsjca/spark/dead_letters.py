"""Sends the rejected messages of a Spark job to the dead-letter destination."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Self, TypeAlias

from airflow_provider_jmsjca.core.copies.dead_letter import WAYS, ConsumedFrom, send_letter
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.redelivery import MessageState, MoveTarget
from airflow_provider_jmsjca.engine.moving import target_of
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.engine.session.session import JmsSession
from airflow_provider_jmsjca.errors import ConnectionLostError, InDoubtError, JmsError, PermanentBrokerError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spark.rejects import RejectedMessage, rejected_messages
from airflow_provider_jmsjca.spool.attempts import DEAD_LETTERED, Done, dead_lettered
from airflow_provider_jmsjca.spool.files import seal
from airflow_provider_jmsjca.spool.manifest import Manifest

_log = safe_logger(__name__)
_CHUNK = 500

OpenConnection: TypeAlias = Callable[[], AbstractContextManager[JmsConnection]]


def send_dead_letters(connect: OpenConnection, manifest: Manifest, target: MoveTarget) -> int:
    """Send the rejected messages of a batch that is done, with reason and original ids in properties.

    Guarantee: no message is lost. Progress is recorded in the batch's folder after every 500 confirmed
    messages, and the next call continues from there. A crash between confirmation and record, or a connection
    lost before the confirmation, repeats up to 500 messages. A broker that deduplicates drops the duplicates.
    If the broker refuses a message, or closes the connection because of it, the message is sent without the
    refused properties. The dead letter then states that they are missing.

    Args:
        connect: Opens a connection. This function closes the connection, and opens another one after a loss.
        manifest: Manifest of the batch.
        target: The dead-letter destination; `$` is replaced by the name of the batch's source.

    Returns:
        The number of rejected messages of the batch, including those sent by earlier attempts.

    Raises:
        ConfigurationError: The dead letters would return to the batch's source.
        SpoolError: The batch isn't done, or a file is damaged.
        PermanentBrokerError: The broker refused a message, even in its smallest form.
        TransientBrokerError: The broker can't be reached, or each attempt to send a message lost the
            connection.

    Source: J140, J149-J165.
    """
    sent = dead_lettered(manifest.folder)
    done = Done.read(manifest.folder)
    if done is not None and sent >= done.rejected:
        return sent  # and the rejects may have been pruned
    rest = itertools.dropwhile(lambda rejected: rejected.number < sent, rejected_messages(manifest))
    with _Sender(connect, manifest, target) as sender:
        while chunk := list(itertools.islice(rest, _CHUNK)):
            sender.send(chunk)
            sent = chunk[-1].number + 1
            mark_sent(manifest, sent)
    if done is not None and sent < done.rejected:  # the last ones were in a segment that was given up
        sent = done.rejected
        mark_sent(manifest, sent)
    return sent


def mark_sent(manifest: Manifest, sent: int) -> None:
    """Durably record that the first `sent` rejects of a batch need not be sent any more."""
    seal(manifest.folder / f"{DEAD_LETTERED}-{sent:09d}", b"")


class _Sender:
    """Sends the dead letters of one batch; reconnects if a connection is lost.

    Args:
        connect: Opens a connection.
        manifest: Manifest of the batch.
        target: The dead-letter destination; see `send_dead_letters`.
    """

    def __init__(self, connect: OpenConnection, manifest: Manifest, target: MoveTarget) -> None:
        self._connect = connect
        self._batch_id = manifest.batch_id
        self._origin = ConsumedFrom(destination=Destination.from_header(manifest.source))
        self._move = target
        self._target = target.destination(self._origin.destination)
        self._open = contextlib.ExitStack()
        self._connection: JmsConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def send(self, chunk: list[RejectedMessage]) -> None:
        """Send messages; if they can't all be sent together, one by one."""
        connection = self._connected()
        try:
            self._send_in_one(connection, chunk)
        except (PermanentBrokerError, ConnectionLostError, InDoubtError) as error:
            _log.warning(
                "%d dead letters can't be sent together; sending them one by one: %s", len(chunk), error
            )
            for one in chunk:
                self._send_alone(one)

    def _send_alone(self, one: RejectedMessage) -> None:
        """Send a message; after two failures retry with fewer and fewer of its properties."""
        refusal: JmsError | None = None
        for less in (0, *range(WAYS)):
            connection = self._connected()
            try:
                self._send_in_one(connection, [one], less)
            except (PermanentBrokerError, ConnectionLostError, InDoubtError) as error:
                refusal = refusal or error
            else:
                if less:
                    self._warn(one, refusal)
                return
        raise refusal or AssertionError("there is no way to send it")

    def _connected(self) -> JmsConnection:
        if self._connection is None:
            connection = self._open.enter_context(self._connect())
            target_of(connection.broker, self._move, self._origin.destination)
            self._connection = connection
        return self._connection

    def _send_in_one(self, connection: JmsConnection, chunk: list[RejectedMessage], less: int = 0) -> None:
        """Send the dead letters of messages in one transaction; close the connection after an error.

        Args:
            connection: The open connection.
            chunk: The messages.
            less: Number of forms of a dead letter to skip. The forms have fewer and fewer properties; the
                first has all of them.
        """
        try:
            with connection.session(transacted=True) as session:
                for rejected in chunk:
                    self._add(session, connection, rejected, less)
                session.commit()
        except JmsError:
            self._connection = None
            self._open.close()
            raise

    def _add(
        self,
        session: JmsSession,
        connection: JmsConnection,
        rejected: RejectedMessage,
        less: int,
    ) -> None:
        """Add a dead letter to a transaction, in the first form that the broker accepts.

        Args:
            session: The transaction.
            connection: The connection of the transaction.
            rejected: The rejected message.
            less: Number of forms to skip; see `_send_in_one`.
        """
        why = Failure(class_names=(rejected.exception_class,), message=rejected.exception_message)
        dedup = (
            f"{self._batch_id}/reject/{rejected.number}"
            if connection.capabilities.deduplicating_send
            else None
        )

        def send(letter: JmsMessage) -> None:
            session.send(self._target, letter, deduplication_id=dedup)

        refusal = send_letter(
            send,
            rejected.message,
            self._origin,
            MessageState(failure=why),
            first=less,
            max_property_characters=connection.capabilities.max_property_characters,
            secrets=connection.secrets,
        )
        if refusal is not None:
            self._warn(rejected, refusal)

    def _warn(self, rejected: RejectedMessage, why: Exception | None) -> None:
        name = rejected.message.message_id
        _log.warning(
            "Message %s goes to %s as a shortened copy, because the complete one could not be sent: %s",
            name,
            self._target,
            why,
        )
