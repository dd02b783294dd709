"""Changes of messages on a queue: move, copy, delete, edit and send. The user confirms each change first."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Final

from starlette.responses import Response

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.selector import selector_text
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError
from airflow_provider_jmsjca.operating.dead_letters import (
    edit_text,
    editable_message,
    edited_message,
    require_selection,
    resend_edited,
)
from airflow_provider_jmsjca.operating.queues import (
    QueueChange,
    change_messages,
    find_message,
    incomplete_count_reason,
    queue_name,
)
from airflow_provider_jmsjca.page.access import Permission
from airflow_provider_jmsjca.page.audit import record
from airflow_provider_jmsjca.page.brokers import open_broker, required_parameter, selected_connection
from airflow_provider_jmsjca.page.visit import Visit
from airflow_provider_jmsjca.transports.administration import MessageSelection, QueueOperation

_LONGEST_TEXT: Final = 128 * 1024
"""Maximum length of a message as text to edit, in bytes. A form has up to three bytes for each."""
_DONE: Final = {QueueChange.MOVE: "moved", QueueChange.COPY: "copied", QueueChange.DELETE: "deleted"}


def changes_offered(
    visit: Visit, conn_id: str, operations: Collection[QueueOperation]
) -> tuple[QueueChange, ...]:
    """Return the changes that the broker offers and that the user may make."""
    if not visit.is_allowed(Permission.OPERATE, conn_id):
        return ()
    return tuple(each for each in QueueChange if QueueOperation(each.value) in operations)


def change_view(visit: Visit) -> Response:
    """Move, copy or delete one message, or those that match a selector, after a confirmation."""
    conn_id, queue, change = selected_connection(visit), required_parameter(visit, "queue"), _change(visit)
    visit.require(Permission.OPERATE, conn_id)
    message_id = visit.query.get("id", "")
    selection = MessageSelection(
        ids=(message_id,) if message_id else (), selector=selector_text(visit.query.get("selector"))
    )
    to = visit.form.get("to", "").strip()
    target = "" if change is QueueChange.DELETE else queue_name(to)
    where = f" to {target}" if target else ""
    back = visit.link("queue", conn_id=conn_id, queue=queue, selector=selection.selector)
    with open_broker(conn_id) as (connection, administration):
        if QueueOperation(change.value) not in administration.operations:
            raise CapabilityError(f"{change} is not offered by {connection.broker}; {administration.way_out}")
        if "confirmed" not in visit.form:
            count = change_messages(administration, change, queue, selection, target=target, dry_run=True)
            return visit.page(
                "confirm.html",
                title=queue,
                question=f"{change.capitalize()} {_counted(count)} of {queue}{where}?",
                text=incomplete_count_reason(administration, queue, selection, count),
                fields={"action": change, "to": to},
                button=change.capitalize(),
                back=back,
            )
        record(
            visit.user,
            f"{change}_messages",
            conn_id=conn_id,
            queue=queue,
            **({"message": message_id} if message_id else {"selector": selection.selector or ""}),
            **({"to": target} if target else {}),
        )
        count = change_messages(administration, change, queue, selection, target=target)
    return visit.page(
        "done.html", title=queue, lines=[f"{_counted(count)} {_DONE[change]}{where}"], back=back
    )


def edit_view(visit: Visit) -> Response:
    """Show a message as text to edit. Then show the user's changes, and ask for a confirmation.

    After the confirmation, send the edited copy and delete the message.
    """
    conn_id, queue, message_id = (
        selected_connection(visit),
        required_parameter(visit, "queue"),
        required_parameter(visit, "id"),
    )
    visit.require(Permission.READ_MESSAGES, conn_id)
    visit.require(Permission.OPERATE, conn_id)
    with open_broker(conn_id) as (connection, administration):
        # First, because browsing has side effects on brokers that can't delete a single message anyway.
        require_selection(connection, administration)
        message = find_message(administration, queue, message_id)
        before = edit_text(editable_message(message))
        if (size := len(before.encode())) > _LONGEST_TEXT:
            raise ConfigurationError(
                f"the message has {size} bytes as JSON, and {_LONGEST_TEXT} can be edited here; "
                "use airflow jms dlq edit"
            )
        back = visit.link("message", conn_id=conn_id, queue=queue, id=message_id)
        if "text" not in visit.form:
            return visit.page("edit.html", title=f"Edit {message_id}", text=before, back=back)
        target = Destination.parse(visit.form.get("to", "").strip())
        copy = edited_message(visit.form["text"])
        after = edit_text(copy)
        if after == before:
            raise ConfigurationError(
                "the text was not changed, so nothing was sent; to send it as it is, move it"
            )
        if "confirmed" not in visit.form:
            difference = difflib.unified_diff(
                before.splitlines(), after.splitlines(), message_id, f"to {target}", lineterm=""
            )
            return visit.page(
                "confirm.html",
                title=f"Edit {message_id}",
                question=f"Send this copy to {target}, and delete the message on {queue}?",
                text="\n".join(difference),
                fields={"text": after, "to": str(target)},
                button="Send",
                back=back,
            )
        record(visit.user, "edit_message", conn_id=conn_id, queue=queue, message=message_id, to=str(target))
        deleted = resend_edited(connection, Destination.queue(queue), message, copy, target)
    lines = [f"The edited message was sent to {target}."]
    if not deleted:
        lines.append(
            "The original was no longer on the queue: another consumer took it, so it may be handled too."
        )
    return visit.page(
        "done.html", title=queue, lines=lines, back=visit.link("queue", conn_id=conn_id, queue=queue)
    )


def _change(visit: Visit) -> QueueChange:
    action = visit.form.get("action", "")
    try:
        return QueueChange(action)
    except ValueError as error:
        raise ConfigurationError(f"action {action!r}: expected {', '.join(QueueChange)}") from error


def _counted(number: int) -> str:
    return f"{number} message{'s' if number != 1 else ''}"
