"""Sends the messages that a Spark job turned away to the dead-letter destination."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace

from airflow_provider_jmsjca.core.copies.dead_letter import ConsumedFrom, letters, send_first
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.redelivery.tracker import MessageState
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.engine.session.session import JmsSession
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.spark.rejects import RejectedMessage, rejected_messages
from airflow_provider_jmsjca.spool.attempts import DEAD_LETTERED, Done, dead_lettered
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.sealing import seal

_log = logging.getLogger(__name__)
_CHUNK = 500


def target_of(text: str, source: Destination) -> Destination:
    """Return the dead-letter destination; `$` stands for the name of the source. Source: J140.

    Raises:
        ConfigurationError: The text names no destination, or one that is looked up and not found.
    """
    found = find_destination(text)
    return replace(found, name=found.name.replace("$", source.name))


def send_dead_letters(connection: JmsConnection, manifest: Manifest, target: Destination) -> int:
    """Send what the finished batch turned away, with the reason and the original ids in properties.

    Guarantee: nothing is lost. Progress is marked in the batch's folder after every 500 confirmed messages:
    called again, it goes on from there. A crash between a confirmation and its mark repeats up to 500
    messages; a broker that deduplicates drops them. A message that can't be copied whole is sent without the
    properties that the broker doesn't take, and says so.

    Returns:
        How many messages the batch turned away, those sent by earlier attempts included.

    Raises:
        SpoolError: The batch isn't finished, or a file is damaged.
        PermanentBrokerError: The broker refused one.
        InDoubtError: The connection was lost; some may be there.

    Source: J149-J165.
    """
    origin = ConsumedFrom(destination=Destination.from_header(manifest.source))
    sent = dead_lettered(manifest.folder)
    done = Done.read(manifest.folder)
    if done is not None and sent >= done.rejected:
        return sent  # and the rejects may have been pruned
    rest = itertools.islice(rejected_messages(manifest), sent, None)
    with connection.session(transacted=True) as session:
        while chunk := list(itertools.islice(rest, _CHUNK)):
            for number, rejected in enumerate(chunk, start=sent):
                _add(session, connection, manifest, target, origin, rejected, number)
            session.commit()
            sent += len(chunk)
            seal(manifest.folder / f"{DEAD_LETTERED}-{sent:09d}", b"")
    return sent


def _add(  # noqa: PLR0917 - private, and read in this order
    session: JmsSession,
    connection: JmsConnection,
    manifest: Manifest,
    target: Destination,
    origin: ConsumedFrom,
    rejected: RejectedMessage,
    number: int,
) -> None:
    """Add a dead letter to a transaction, with as much of the message as the broker takes."""
    why = Failure(class_names=(rejected.exception_class,), message=rejected.exception_message)
    ways = letters(
        rejected.message,
        origin,
        MessageState(failure=why),
        max_property_characters=connection.capabilities.max_property_characters,
        secrets=connection.secrets,
    )
    dedup = f"{manifest.batch_id}/reject/{number}" if connection.capabilities.deduplicating_send else None

    def send(letter: JmsMessage) -> None:
        session.send(target, letter, deduplication_id=dedup)

    refusal = send_first(ways, send)
    if refusal is not None:
        _log.warning("Message %s goes to %s without a part: %s", rejected.message.message_id, target, refusal)
