"""Examines the dead-letter queues of a broker."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from airflow_provider_jmsjca.escaping import shell_arguments
from airflow_provider_jmsjca.operating.dead_letters import DeadLetterGroup, grouped, is_dead_letter_queue
from airflow_provider_jmsjca.operating.doctor.counts import messages
from airflow_provider_jmsjca.operating.findings import Finding, Part
from airflow_provider_jmsjca.store.base import ActivationRun
from airflow_provider_jmsjca.transports.administration import QueueAdministration, QueueOperation

_MOST_LETTERS: Final = 200


def examine_letters(
    conn_id: str,
    administration: QueueAdministration,
    known: Collection[str],
    senders: Sequence[ActivationRun],
    *,
    browse: bool,
) -> Iterator[Finding]:
    """Yield a finding for each dead-letter queue that holds messages.

    Args:
        conn_id: The Airflow connection.
        administration: Administration of its broker.
        known: Names of dead-letter queues that are not recognised by their names.
        senders: Runs at this broker, for what is known of letters that are not browsed.
        browse: Browse even if that has a side effect on this broker.

    Raises:
        JmsError: The broker does not list its queues, or the connection was lost.
    """
    here = f"--conn-id {shlex.quote(conn_id)}"
    for queue in administration.queues():
        if not queue.messages or not (queue.name in known or is_dead_letter_queue(queue.name)):
            continue
        cause = "messages failed and were moved there"
        groups: list[DeadLetterGroup] = []
        if QueueOperation.BROWSE not in administration.operations:
            pass
        elif administration.browse_note and not browse:
            cause = _last_error(queue.name, senders) or cause
            cause += "; not browsed, which would mark them as redelivered (airflow jms doctor --browse does)"
        elif groups := grouped(administration.browse(queue.name, limit=_MOST_LETTERS)):
            largest = groups[0]
            origin = "" if largest.destination is None else f", from {largest.destination}"
            cause = f"{largest.count} with: {largest.reason}{origin}"
            if (looked_at := sum(each.count for each in groups)) < queue.messages:
                cause = f"of the first {looked_at}, {cause}"
        fix = f"airflow jms dlq list {shlex.quote(queue.name)} {here}"
        if len(groups) == 1 and (letter := groups[0].example) and letter.isprintable():
            # All failed for one reason: a list would add nothing.
            fix = (
                f"airflow jms dlq show {here} {shell_arguments(queue.name, letter)}; then dlq edit corrects "
                "and sends it, dlq replay sends all back"
            )
        yield Finding(
            part=Part.BROKERS,
            symptom=f"connection {conn_id!r}: {messages(queue.messages)} on the dead-letter queue "
            f"{queue.name}",
            cause=cause,
            fix=fix,
            conn_id=conn_id,
        )


def _last_error(queue: str, senders: Sequence[ActivationRun]) -> str:
    """Return the last error of a run that moved dead letters on this broker; empty if none is known.

    The registry doesn't record the names of dead-letter queues. So runs are preferred whose destination's
    name is part of the queue's name.
    """
    senders = [each for each in senders if each.report.dead_lettered]
    named = [
        each
        for each in senders
        if any(text.partition("://")[2] in queue for text in each.report.destination.split(", "))
    ]
    reports = [each.report for each in named or senders if each.report.last_error_at is not None]
    if not reports:
        return ""
    last = max(reports, key=lambda report: report.last_error_at or report.since)
    return (
        f"activation {last.title or last.activation} moved {messages(last.dead_lettered)} to a dead-letter "
        f"destination; its last error: {last.last_error}"
    )
