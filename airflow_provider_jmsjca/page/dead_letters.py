"""Dead letters: lists them by reason and origin, sends them back, deletes them."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Final

from starlette.responses import Response

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.selector import selector_text
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.operating.dead_letters import (
    Replay,
    list_dead_letters,
    replay_dead_letters,
)
from airflow_provider_jmsjca.operating.messages import moment
from airflow_provider_jmsjca.operating.queues import QueueChange, change_messages
from airflow_provider_jmsjca.page.access import Permission
from airflow_provider_jmsjca.page.audit import record
from airflow_provider_jmsjca.page.brokers import (
    AskFirstError,
    open_broker,
    require_browse_consent,
    required_parameter,
    selected_connection,
)
from airflow_provider_jmsjca.page.queues import dead_letter_queues
from airflow_provider_jmsjca.page.visit import Visit
from airflow_provider_jmsjca.transports.administration import MessageSelection

_MOST_LETTERS: Final = 1_000
_MOST_SENT: Final = 10_000
_REPLAY_SECONDS: Final = 12.0


def list_view(visit: Visit) -> Response:
    """Show the dead-letter queues of a connection, or the dead letters of one queue in groups."""
    if not visit.query.get("queue"):
        return dead_letter_queues(visit)
    conn_id = selected_connection(visit)
    queue, selector = visit.query["queue"], visit.query.get("selector", "")
    visit.require(Permission.READ_MESSAGES, conn_id)
    with open_broker(conn_id) as (_, administration):
        try:
            require_browse_consent(visit, administration)
        except AskFirstError as asked:
            return visit.page("ask.html", title=queue, note=str(asked))
        if administration.browse_note:
            record(visit.user, "browse_queue", conn_id=conn_id, queue=queue)
        found = list_dead_letters(
            administration, queue, selector=selector_text(selector), limit=_MOST_LETTERS
        )
    origins = {str(each.destination) for each in found.groups if each.destination is not None}
    return visit.page(
        "dead_letters.html",
        title=f"Dead letters on {queue}",
        conn_id=conn_id,
        queue=queue,
        selector=selector,
        found=found,
        moment=moment,
        origins=sorted(origins),
        may_change=visit.is_allowed(Permission.OPERATE, conn_id),
        most_sent=_MOST_SENT,
    )


def change_view(visit: Visit) -> Response:
    """Send dead letters back or delete them, depending on the form's `action`.

    A form without `action` only confirms that browsing may have a side effect; then show the dead letters.
    """
    if "action" not in visit.form:
        return list_view(visit)
    conn_id = selected_connection(visit)
    queue = required_parameter(visit, "queue")
    visit.require(Permission.OPERATE, conn_id)
    match visit.form["action"]:
        case "replay":
            lines = _replayed(visit, conn_id, queue)
        case "purge":
            lines = [_purged(visit, conn_id, queue)]
        case other:
            raise ConfigurationError(f"action {other!r}: expected replay or purge")
    back = visit.link("dead-letters", conn_id=conn_id, queue=queue, selector=visit.query.get("selector"))
    return visit.page("done.html", title=f"Dead letters on {queue}", lines=lines, back=back)


def _replayed(visit: Visit, conn_id: str, queue: str) -> list[str]:
    to, origin = visit.form.get("to", "").strip(), visit.form.get("origin", "")
    selector, dry_run = selector_text(visit.query.get("selector")), "dry_run" in visit.form
    asked = Replay(
        run=uuid.uuid4().hex,
        target=Destination.parse(to) if to else None,
        origins=frozenset() if to or not origin else frozenset({Destination.parse(origin)}),
        selector=selector,
        most=_MOST_SENT,
        dry_run=dry_run,
    )
    if not dry_run:
        record(
            visit.user,
            "replay_dead_letters",
            conn_id=conn_id,
            queue=queue,
            selector=selector or "",
            **({"to": to} if to else {"origin": origin}),
        )
    stopped, until = threading.Event(), time.monotonic() + _REPLAY_SECONDS

    def progress(_: int) -> None:
        if time.monotonic() > until:
            stopped.set()

    with open_broker(conn_id) as (connection, _):
        if dry_run and not connection.capabilities.browse:  # it receives the letters and returns them
            record(visit.user, "browse_queue", conn_id=conn_id, queue=queue)
        result = replay_dead_letters(
            connection, Destination.queue(queue), asked, stopped=stopped, progress=progress
        )
    done = "would be sent back" if dry_run else "sent back"
    lines = [f"{count} {done} to {where}" for where, count in result.sent.most_common()]
    lines += [f"{count} left: {why}" for why, count in result.left.most_common()]
    if stopped.is_set() or not result.complete:
        lines.append("There are more; do it again, or use airflow jms dlq replay.")
    elif result.sent.total() == _MOST_SENT:
        lines.append("There may be more; do it again, or use airflow jms dlq replay.")
    return lines or ["No dead letters."]


def _purged(visit: Visit, conn_id: str, queue: str) -> str:
    if visit.form.get("confirm", "") != queue:
        raise ConfigurationError(f"nothing was deleted: type the name of the queue, {queue}, to confirm")
    selector = selector_text(visit.query.get("selector"))
    record(visit.user, "purge_dead_letters", conn_id=conn_id, queue=queue, selector=selector or "")
    with open_broker(conn_id) as (_, administration):
        count = change_messages(
            administration, QueueChange.DELETE, queue, MessageSelection(selector=selector)
        )
    return f"{count} messages deleted"
