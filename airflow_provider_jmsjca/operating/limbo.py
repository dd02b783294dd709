"""Limbo: messages that are due later, and messages that could not be sent."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import assert_never

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.operating.activations import resolve_name
from airflow_provider_jmsjca.store.base import LimboMessage, LimboSelection, LimboState, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class LimboContent:
    """A message in limbo with its content.

    Attributes:
        entry: State of the message in limbo, with due time and destination.
        message: The message.
    """

    entry: LimboMessage
    message: JmsMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class LimboChangeResult:
    """Result of a change.

    Attributes:
        count: Number of changed messages.
        due_already: Whether nothing was released because the messages are due already and will be sent.
    """

    count: int
    due_already: bool = False


class LimboChange(enum.StrEnum):
    """A change of messages in limbo."""

    REVIVE = "revive"
    """Failed messages are sent again, with the full number of tries."""
    RELEASE = "release"
    """Waiting messages are sent now."""
    PURGE = "purge"
    """Messages are deleted permanently, except for messages being sent."""


def limbo_selection(
    store: Store,
    *,
    numbers: Collection[int] | None = None,
    state: LimboState | None = None,
    activation: str | None = None,
    jms_conn_id: str | None = None,
    destination: str | None = None,
) -> LimboSelection:
    """Return a selection from values that a user typed; each argument that is `None` selects all.

    Args:
        store: The store with the messages.
        numbers: Numbers of the messages.
        state: State of the messages.
        activation: Name of the activation as listed, or the part of it before `at` and the broker.
        jms_conn_id: The Airflow connection over which they are sent.
        destination: `queue://orders`, or the name of a queue.

    Raises:
        ConfigurationError: The name fits several activations.
        TransientStoreError: The store can't be used now.
    """
    return LimboSelection(
        numbers=None if numbers is None else frozenset(numbers),
        state=state,
        activation=None if activation is None else resolve_name(activation, store.limbo.activations()),
        jms_conn_id=jms_conn_id,
        destination=None if destination is None else _destination(destination),
    )


def list_limbo(
    store: Store, selection: LimboSelection, *, limit: int = 100, after: int = 0
) -> list[LimboMessage]:
    """Return up to `limit` messages with numbers above `after`, in the order of their numbers.

    Raises:
        TransientStoreError: The store can't be used now.
    """
    return store.limbo.page(selection, limit=limit, after=after)


def show_limbo(store: Store, number: int) -> LimboContent:
    """Return one message with its content.

    Raises:
        ConfigurationError: No message has this number, or its content can't be decrypted or read.
        TransientStoreError: The store can't be used now.
    """
    found = store.limbo.page(LimboSelection(numbers=frozenset({number})))
    message = store.limbo.contents([number]).get(number)
    if not found or message is None:
        raise ConfigurationError(f"no message {number} is in limbo; see airflow jms limbo list")
    if isinstance(message, ConfigurationError):
        raise message
    return LimboContent(entry=found[0], message=message)


def change_limbo(store: Store, change: LimboChange, selection: LimboSelection) -> LimboChangeResult:
    """Revive, release or purge messages.

    Raises:
        TransientStoreError: The store can't be used now; nothing was changed.
    """
    limbo, now = store.limbo, store.limbo.now()
    match change:
        case LimboChange.REVIVE:
            return LimboChangeResult(count=limbo.revive(selection, now))
        case LimboChange.PURGE:
            return LimboChangeResult(count=limbo.purge(selection, now))
        case LimboChange.RELEASE:
            count = limbo.release(selection, now)
            due = False
            if not count and selection.state is not LimboState.FAILED:
                due = bool(limbo.page(replace(selection, state=LimboState.WAITING), limit=1))
            return LimboChangeResult(count=count, due_already=due)
        case _:
            assert_never(change)


def _destination(text: str) -> str:
    """Return a destination as limbo stores it; the text may be only the name of a queue."""
    try:
        return str(Destination.parse(text))
    except ConfigurationError:  # limbo may have messages whose destination can't be parsed
        return text
