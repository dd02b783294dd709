"""The command `airflow jms schema`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import islice

from airflow_provider_jmsjca.cli.commands import echo, one_line_errors, shortened
from airflow_provider_jmsjca.cli.queues import administration_of, warn_before_browsing
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.spool import spool_path
from airflow_provider_jmsjca.operating.queues import queue_name
from airflow_provider_jmsjca.operating.schema_proposal import propose_schema
from airflow_provider_jmsjca.spool.manifest import MANIFEST, Manifest
from airflow_provider_jmsjca.spool.rows import manifest_messages
from airflow_provider_jmsjca.spool.upkeep.states import batches


@one_line_errors
def schema_command(args: argparse.Namespace) -> None:
    """Print a schema for the JSON bodies of messages on a queue or in a batch; leave the messages there.

    Standard output gets the fields, one on each line. Standard error gets each message that doesn't fit.
    """
    if bool(args.queue) == bool(args.batch):
        raise ConfigurationError(
            "no messages selected; give either a queue, or --batch with the name of a batch"
        )
    found = _sealed(args) if args.batch else _browsed(args)
    proposal = propose_schema(islice(found, args.limit))
    sys.stdout.write(",\n".join(proposal.fields) + "\n")
    for each in proposal.disagreements:
        echo(shortened(f"{each.message}: {each.reason}"))
    read, others = proposal.messages, len(proposal.disagreements)
    echo(f"note: {read} message{'s' if read != 1 else ''} read, {others} of them don't fit")


def _browsed(args: argparse.Namespace) -> Iterator[tuple[str, JmsMessage]]:
    with administration_of(args.conn_id) as administration:
        warn_before_browsing(administration)
        found = administration.browse(queue_name(args.queue), selector=args.selector, limit=args.limit)
    for number, message in enumerate(found):
        yield message.message_id or f"message {number}", message


def _sealed(args: argparse.Namespace) -> Iterator[tuple[str, JmsMessage]]:
    if args.selector is not None:
        raise ConfigurationError("--selector works only with a queue, not with --batch")
    for batch in batches(spool_path(args.spool_path), args.batch):
        for each in manifest_messages(Manifest.read(batch.folder / MANIFEST)):
            yield f"{batch.batch_id} segment {each.segment} position {each.position}", each.message
