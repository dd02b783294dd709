"""Sends the messages that a Spark job turned away to the dead-letter destination."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from airflow_provider_jmsjca.core.dead_letter import Origin, copy_of
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery.tracker import MessageState
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.spark.manifest import Manifest
from airflow_provider_jmsjca.spark.rejects import RejectedMessage, rejected_messages
from airflow_provider_jmsjca.spark.sealing import numbered, seal
from airflow_provider_jmsjca.transports.base import Connection, Outgoing

_MARK = "dead-lettered"
_CHUNK = 500


def target_of(text: str, source: Destination) -> Destination:
    """Return the dead-letter destination; `$` stands for the name of the source. Source: J140.

    Raises:
        ConfigurationError: The text names no destination, or one that is looked up and not found.
    """
    found = find_destination(text)
    return replace(found, name=found.name.replace("$", source.name))


def send_dead_letters(connection: Connection, manifest: Manifest, target: Destination) -> int:
    """Send what the finished batch turned away, with the reason and the original ids in properties.

    Guarantee: nothing is lost. Progress is marked in the batch's folder after every 500 confirmed messages:
    called again, it goes on from there. A crash between a confirmation and its mark repeats up to 500
    messages; a broker that deduplicates drops them.

    Returns:
        How many messages the batch turned away, those sent by earlier attempts included.

    Raises:
        SpoolError: The batch isn't finished, or a file is damaged.
        PermanentBrokerError: The broker refused one.
        InDoubtError: The connection was lost; some may be there.

    Source: J149-J165.
    """
    origin = Origin(destination=Destination.from_header(manifest.source))
    marks = numbered(manifest.folder, _MARK)
    sent = marks[-1][0] if marks else 0
    rest = itertools.islice(rejected_messages(manifest), sent, None)
    while chunk := list(itertools.islice(rest, _CHUNK)):
        connection.send(_letters(connection, manifest, target, origin, chunk, first=sent))
        sent += len(chunk)
        seal(manifest.folder / f"{_MARK}-{sent:09d}", b"")
    return sent


def _letters(
    connection: Connection,
    manifest: Manifest,
    target: Destination,
    origin: Origin,
    chunk: list[RejectedMessage],
    *,
    first: int,
) -> Iterator[Outgoing]:
    capabilities = connection.capabilities
    for number, rejected in enumerate(chunk, start=first):
        why = Failure(class_names=(rejected.exception_class,), message=rejected.exception_message)
        letter = copy_of(
            rejected.message,
            origin,
            MessageState(failure=why),
            max_property_characters=capabilities.max_property_characters,
        )
        dedup = f"{manifest.batch_id}/reject/{number}" if capabilities.deduplicating_send else None
        yield Outgoing(destination=target, message=letter, deduplication_id=dedup)
