"""Redelivery handling: actions on redelivered messages.

This folder may import no other folder of `core`.

Source: J128-J148, J169-J171; C1-C14.
"""

from __future__ import annotations

from airflow_provider_jmsjca.core.redelivery.actions import (
    Action,
    Delay,
    Delete,
    GrowingDelay,
    Move,
    MoveKind,
    MoveTarget,
    slices,
)
from airflow_provider_jmsjca.core.redelivery.handling import RedeliveryHandling
from airflow_provider_jmsjca.core.redelivery.tracker import MessageState, RedeliveryTracker

__all__ = [
    "Action",
    "Delay",
    "Delete",
    "GrowingDelay",
    "MessageState",
    "Move",
    "MoveKind",
    "MoveTarget",
    "RedeliveryHandling",
    "RedeliveryTracker",
    "slices",
]
