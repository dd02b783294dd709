"""Examines the dead-letter queues of a broker."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.escaping import shell_arguments
from airflow_provider_jmsjca.operating.dead_letters import (
    DeadLetterGroup,
    grouped,
    is_dead_letter_queue,
    may_browse,
)
from airflow_provider_jmsjca.operating.doctor.counts import counted, messages
from airflow_provider_jmsjca.operating.findings import Finding, Part
from airflow_provider_jmsjca.operating.messages import moment
from airflow_provider_jmsjca.store.base import ActivationRun
from airflow_provider_jmsjca.transports.administration import QueueAdministration

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
        known: Further dead-letter queues, whose names don't show that they are dead-letter queues.
        senders: Activation runs at this broker, some of which moved messages to dead-letter queues. A finding
            names the latest run that moved its letters. If they aren't browsed, it gives the last error of
            such a run.
        browse: Browse even if that has a side effect on this broker.

    Raises:
        JmsError: The broker does not list its queues, or the connection was lost.
    """
    here = f"--conn-id {shlex.quote(conn_id)}"
    for queue in administration.queues():
        if not queue.messages or not (queue.name in known or is_dead_letter_queue(queue.name)):
            continue
        listing = f"airflow jms dlq list {here} {shell_arguments(queue.name)}"
        cause, fix = "messages failed and were moved there", listing
        if may_browse(administration, side_effects=browse):
            if groups := grouped(administration.browse(queue.name, limit=_MOST_LETTERS)):
                cause = _reason(groups, queue.messages) + _movers(groups[0].destination, senders)
                fix = _fix(groups, queue.name, here, listing)
        elif administration.browse_note:
            cause = f"{_last_error(queue.name, senders) or cause}; not browsed: {administration.browse_note}"
            fix = f"to read them anyway: {listing}"
        yield Finding(
            part=Part.BROKERS,
            symptom=f"connection {conn_id!r}: {messages(queue.messages)} on the dead-letter queue "
            f"{queue.name}",
            cause=cause,
            fix=fix,
            conn_id=conn_id,
        )


def _reason(groups: Sequence[DeadLetterGroup], waiting: int) -> str:
    """Return the reason of the largest group, with the values of one of its letters, and its origin."""
    largest = groups[0]
    is_exact = largest.count == 1 or largest.example_reason == largest.reason
    since = f", {'at' if largest.count == 1 else 'since'} {moment(largest.first)}" if largest.first else ""
    origin = "" if largest.destination is None else f", from {largest.destination}"
    cause = f"{largest.count} {'with' if is_exact else 'like'}: {largest.example_reason}{origin}{since}"
    looked_at = sum(each.count for each in groups)
    return cause if looked_at >= waiting else f"of the first {looked_at}, {cause}"


def _movers(origin: Destination | None, senders: Sequence[ActivationRun]) -> str:
    """Return a clause that names the runs which moved dead letters from a destination.

    Returns:
        The latest of them and the number of others; empty if the registry has no such run.
    """
    reports = [
        each.report
        for each in senders
        if each.report.dead_lettered and str(origin) in each.report.destination.split(", ")
    ]
    if not reports:
        return ""
    last = max(reports, key=lambda report: report.last_error_at or report.since)
    others = len({each.owner for each in reports}) - 1
    also = f", as did {counted(others, 'other')}" if others else ""
    moved = messages(last.dead_lettered)
    return f"; {last.owner} moved {moved} from there to a dead-letter destination{also}"


def _fix(groups: Sequence[DeadLetterGroup], queue: str, here: str, listing: str) -> str:
    """Return the command that shows a letter of the largest group, and the next step after it."""
    letter = groups[0].example
    if not letter or not letter.isprintable():
        return listing
    show = f"airflow jms dlq show {here} {shell_arguments(queue, letter)}"
    if len(groups) > 1:
        return f"{show}; all {len(groups)} reasons: {listing}"
    return f"{show}; then dlq edit corrects and sends it, dlq replay sends all back"


def _last_error(queue: str, senders: Sequence[ActivationRun]) -> str:
    """Return the last error of a run that moved dead letters on this broker; empty if none is known.

    The registry doesn't record to which queue a run moves dead letters. If a run's destination is part of
    the queue's name, only such runs are considered.
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
    moved = messages(last.dead_lettered)
    return (
        f"activation {last.title or last.activation} ({last.owner}) moved {moved} to a dead-letter "
        f"destination; its last error: {last.last_error}"
    )
