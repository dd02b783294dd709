"""Queues and the messages on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector import selector_text
from airflow_provider_jmsjca.errors import CapabilityError
from airflow_provider_jmsjca.hooks.metadata import settings_with_short_timeouts
from airflow_provider_jmsjca.hooks.store import store_in_use
from airflow_provider_jmsjca.operating.dead_letters import is_dead_letter_queue
from airflow_provider_jmsjca.operating.messages import body_preview, message_view, moment
from airflow_provider_jmsjca.operating.queues import (
    QueueList,
    browse_queue,
    find_message,
    list_queues,
    matching,
    registered_uses,
    used_queues,
)
from airflow_provider_jmsjca.page.access import Permission
from airflow_provider_jmsjca.page.activations import open_store
from airflow_provider_jmsjca.page.audit import record
from airflow_provider_jmsjca.page.brokers import (
    AskFirstError,
    chosen_connection,
    open_broker,
    require_browse_consent,
    required_parameter,
    selected_connection,
)
from airflow_provider_jmsjca.page.changes import change_view, changes_offered
from airflow_provider_jmsjca.page.visit import Visit

_PAGE: Final = 50
_MOST_QUEUES: Final = 500
_MOST_SHOWN: Final = 256 * 1024
"""Maximum length of a shown body, in bytes or characters; the rest is left out."""
_MOST_DIGITS: Final = 9


def list_view(visit: Visit) -> Response:
    """Show the queues of a connection, and the activations of this installation that use them."""
    return _listed(visit, "queues", "Queues", lambda _: True)


def dead_letter_queues(visit: Visit) -> Response:
    """Show the queues of a connection that are named like dead-letter queues, such as `orders.dlq`."""
    return _listed(visit, "dead-letters", "Dead letters", is_dead_letter_queue)


def _listed(visit: Visit, path: str, title: str, chosen: Callable[[str], bool]) -> Response:
    conn_id, known = chosen_connection(visit)
    match, filled = visit.query.get("match", ""), "filled" in visit.query
    queues = QueueList(queues=())
    if conn_id is not None:
        uses = []
        if store_in_use():
            with open_store() as store:
                uses = registered_uses(store)
        used = used_queues(uses, jms_conn_id=conn_id, settings=settings_with_short_timeouts(conn_id))
        try:
            with open_broker(conn_id) as (_, administration):
                queues = list_queues(administration, used=used)
        except CapabilityError as error:
            queues = QueueList(queues=(), note=str(error))
    found = matching(queues.queues, pattern=f"*{match}*" if match else None, filled=filled)
    found = [each for each in found if chosen(each.name)]
    return visit.page(
        "queues.html",
        path=path,
        title=title,
        conn_id=conn_id,
        known=known,
        found=found[:_MOST_QUEUES],
        more=len(found) - _MOST_QUEUES,
        note=queues.note,
        match=match,
        filled=filled,
    )


def browse_view(visit: Visit) -> Response:
    """Show the messages on a queue, page by page, or change them."""
    if "action" in visit.form:
        return change_view(visit)
    conn_id = selected_connection(visit)
    queue, selector = required_parameter(visit, "queue"), visit.query.get("selector", "")
    visit.require(Permission.READ_MESSAGES, conn_id)
    skip = _number(visit.query.get("skip", ""))
    with open_broker(conn_id) as (_, administration):
        try:
            require_browse_consent(visit, administration)
        except AskFirstError as asked:
            return visit.page("ask.html", title=queue, note=str(asked))
        if administration.browse_note:
            record(visit.user, "browse_queue", conn_id=conn_id, queue=queue)
        page = browse_queue(administration, queue, selector=selector_text(selector), skip=skip, limit=_PAGE)
        operations = administration.operations
    return visit.page(
        "queue.html",
        title=queue,
        conn_id=conn_id,
        queue=queue,
        selector=selector,
        rows=[_row(each) for each in page.messages],
        note=page.note,
        newer=None if not skip else max(0, skip - _PAGE),
        older=skip + _PAGE if page.more else None,
        changes=changes_offered(visit, conn_id, operations),
    )


def detail_view(visit: Visit) -> Response:
    """Show one message with headers, properties and body, or change it."""
    if "action" in visit.form:
        return change_view(visit)
    conn_id = selected_connection(visit)
    queue, message_id = required_parameter(visit, "queue"), required_parameter(visit, "id")
    visit.require(Permission.READ_MESSAGES, conn_id)
    with open_broker(conn_id) as (_, administration):
        try:
            require_browse_consent(visit, administration)
        except AskFirstError as asked:
            return visit.page("ask.html", title=message_id, note=str(asked))
        if administration.browse_note:
            record(visit.user, "browse_message", conn_id=conn_id, queue=queue, message=message_id)
        message = find_message(administration, queue, message_id)
        operations = administration.operations
    view = message_view(message, limit=_MOST_SHOWN)
    return visit.page(
        "message.html",
        title=message_id,
        view=view,
        back=visit.link("queue", conn_id=conn_id, queue=queue),
        back_name=queue,
        changes=changes_offered(visit, conn_id, operations),
        edit=visit.link("edit", conn_id=conn_id, queue=queue, id=message_id),
    )


def _row(message: JmsMessage) -> dict[str, object]:
    return {
        "id": message.message_id,
        "sent": moment(message.timestamp),
        "redelivered": message.redelivered,
        "properties": len(message.properties),
        "body": body_preview(message),
    }


def _number(text: str) -> int:
    """Return the number of messages to skip; 0 if the text is no number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else 0
