"""Limbo: messages that are due later, and messages that could not be sent."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.operating.limbo import limbo_selection, list_limbo, show_limbo
from airflow_provider_jmsjca.operating.messages import message_view
from airflow_provider_jmsjca.page.access import Permission
from airflow_provider_jmsjca.page.activations import open_store
from airflow_provider_jmsjca.page.visit import Visit
from airflow_provider_jmsjca.store.base import LimboSelection, LimboState

_PAGE: Final = 200
_MOST_SHOWN: Final = 256 * 1024
_MOST_DIGITS: Final = 18


def list_view(visit: Visit) -> Response:
    """Show the messages in limbo, in the order of their numbers."""
    text = visit.query.get("state", "")
    if text not in {"", *LimboState}:
        raise ConfigurationError(f"state {text!r}: expected {' or '.join(LimboState)}")
    after = _number(visit.query.get("after", "0"))
    with open_store() as store:
        selection = limbo_selection(store, state=LimboState(text) if text else None)
        found = list_limbo(store, selection, limit=_PAGE + 1, after=after)
    return visit.page(
        "limbo.html",
        title="Limbo",
        found=found[:_PAGE],
        state=text,
        states=list(LimboState),
        older=found[_PAGE - 1].number if len(found) > _PAGE else None,
    )


def detail_view(visit: Visit) -> Response:
    """Show one message in limbo with its content."""
    number = _number(visit.query.get("number", ""))
    with open_store() as store:
        entries = list_limbo(store, LimboSelection(numbers=frozenset({number})), limit=1)
        visit.require(Permission.READ_MESSAGES, entries[0].jms_conn_id if entries else None)
        content = show_limbo(store, number)
    return visit.page(
        "message.html",
        title=f"Limbo, message {number}",
        view=message_view(content.message, limit=_MOST_SHOWN),
        back=visit.link("limbo"),
        back_name="Limbo",
        changes=(),
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise ConfigurationError(f"{text!r}: expected a number")
    return int(text)
