"""Attempts at messages: the number of deliveries of each, and messages in flight or in doubt."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.operating.activations import resolve_name
from airflow_provider_jmsjca.store.base import (
    AttemptEntry,
    AttemptSelection,
    MessageAttempts,
    Store,
    listed_name,
)

_PAGE: Final = 1_000


class UnsettledState(enum.StrEnum):
    """State of a message that was received and is not settled."""

    IN_FLIGHT = "in flight"
    """A live process is handling the message."""
    IN_DOUBT = "in doubt"
    """The process that handled the message has died; the outcome is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsettledMessage:
    """A message that was received and is not settled.

    Attributes:
        attempts: The attempts at the message.
        state: Whether the process that received it is alive.
    """

    attempts: MessageAttempts
    state: UnsettledState


def list_attempts(
    store: Store, activation: str | None = None, *, at_least: int = 1, limit: int = 100, after: int = 0
) -> list[MessageAttempts]:
    """Return the messages with stored attempts, those with most attempts first.

    Args:
        store: The store that counts the attempts.
        activation: Name as listed, or the part of it before `at` and the broker; `None`: all activations.
        at_least: Minimum number of attempts.
        limit: Maximum number of messages.
        after: Number of messages to skip.

    Raises:
        ConfigurationError: The name fits several activations.
        TransientStoreError: The store can't be used now.
    """
    return store.attempts.page(_listed(store, activation), at_least=at_least, limit=limit, after=after)


def attempt_history(store: Store, activation: str, message: str) -> list[AttemptEntry]:
    """Return the attempts at one message, each with its time, process and exception.

    Args:
        store: The store that counts the attempts.
        activation: Name as listed, or the part of it before `at` and the broker.
        message: Id of the message, as listed.

    Raises:
        ConfigurationError: The name fits several activations, or no attempt is stored.
        TransientStoreError: The store can't be used now.
    """
    entries = store.attempts.history(_listed(store, activation) or "", message)
    if not entries:
        raise ConfigurationError(
            f"no attempt at message {message!r} of {activation!r} is stored; see airflow jms attempts list"
        )
    return entries


def attempts_at_message(store: Store, message_id: str) -> list[tuple[str, AttemptEntry]]:
    """Return the attempts at one message in all activations, each with the name of its activation.

    The store deletes the attempts once the message is settled, for example moved to a dead-letter queue.

    Args:
        store: The store that counts the attempts.
        message_id: Id of the message at the broker.

    Raises:
        TransientStoreError: The store can't be used now.
    """
    return [
        (activation, each)
        for activation in sorted(store.attempts.activations())
        for each in store.attempts.history(activation, message_id)
    ]


def reset_attempts(
    store: Store, *, activation: str | None = None, message: str | None = None, at_least: int = 1
) -> int:
    """Delete the attempts at messages, so that counting restarts, and return the number of messages.

    Args:
        store: The store that counts the attempts.
        activation: Name as listed, or the part of it before `at` and the broker; `None`: all activations.
        message: Id of the message, as listed; `None`: all messages.
        at_least: Only messages with this number of attempts or more.

    Raises:
        ConfigurationError: The name fits several activations.
        TransientStoreError: The store can't be used now; nothing was changed.
    """
    return store.attempts.reset(
        AttemptSelection(activation=_listed(store, activation), message=_message(message), at_least=at_least)
    )


def list_unsettled(
    store: Store, activation: str | None = None, *, state: UnsettledState | None = None
) -> list[UnsettledMessage]:
    """Return received, unsettled messages, each with the state of the process that received it.

    Args:
        store: The store that counts the attempts.
        activation: Name as listed, or the part of it before `at` and the broker; `None`: all activations.
        state: Return messages in this state only; `None`: all.

    Raises:
        ConfigurationError: The name fits several activations.
        TransientStoreError: The store can't be used now.
    """
    name = _listed(store, activation)
    living = store.owners.live(store.attempts.open_at(), store.owners.now())
    found: list[MessageAttempts] = []
    while some := store.attempts.page(name, open_only=True, after=len(found), limit=_PAGE):
        found += some
    unsettled = [
        UnsettledMessage(
            attempts=each,
            state=UnsettledState.IN_FLIGHT if each.where in living else UnsettledState.IN_DOUBT,
        )
        for each in found
    ]
    return [each for each in unsettled if state is None or each.state is state]


def resolve_in_doubt(store: Store, *, activation: str | None = None, message: str | None = None) -> int:
    """Mark messages in doubt as resolved, so that they can be delivered again, and return their number.

    Messages that a live process is handling are not changed.

    Args:
        store: The store that counts the attempts.
        activation: Name as listed, or the part of it before `at` and the broker; `None`: all activations.
        message: Id of the message, as listed; `None`: all messages.

    Raises:
        ConfigurationError: The name fits several activations.
        TransientStoreError: The store can't be used now; nothing was changed.
    """
    everywhere = store.attempts.open_at()
    dead = everywhere - store.owners.live(everywhere, store.owners.now())
    return store.attempts.resolve(
        AttemptSelection(activation=_listed(store, activation), message=_message(message), open_at=dead)
    )


def _listed(store: Store, activation: str | None) -> str | None:
    return resolve_name(activation, store.attempts.activations())


def _message(message: str | None) -> str | None:
    return None if message is None else listed_name(message)
