"""Copies of messages for the in-progress queue, with their recorded origin.

With such a queue, each message is first put there, and handled when it is received from there.

Source: I9-I14.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from airflow_provider_jmsjca.core.copies.parking import parked_copy
from airflow_provider_jmsjca.core.message import JmsMessage

RUN = "_JMSJCA_InProgressRun"
SOURCE = "_JMSJCA_InProgressFrom"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFrom:
    """Origin recorded in an in-progress message.

    Attributes:
        run: Id of the activation run that put the message there; empty if not recorded.
        source: Destination from which the message was received, as text; empty if not recorded.
    """

    run: str = ""
    source: str = ""


def staged_copy(message: JmsMessage, staged: StagedFrom) -> JmsMessage:
    """Return the copy for the in-progress queue, which records the message's own id and its origin."""
    copy = parked_copy(message, 0)
    return replace(
        copy, properties=MappingProxyType({**copy.properties, RUN: staged.run, SOURCE: staged.source})
    )


def unstaged(message: JmsMessage) -> tuple[JmsMessage, StagedFrom]:
    """Return the original of a message from the in-progress queue, and its recorded origin."""
    properties = dict(message.properties)
    staged = StagedFrom(run=str(properties.pop(RUN, "")), source=str(properties.pop(SOURCE, "")))
    return replace(message, properties=MappingProxyType(properties)), staged


def run_selector(run: str) -> str:
    """Return a selector for the messages that a run of an activation put into the in-progress queue."""
    return f"{RUN} = '{run}'"
