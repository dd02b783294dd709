"""The metrics of listeners and collectors, under the names of `core.metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.core.metrics import Measured
from airflow_provider_jmsjca.engine.activations.registry import Identity
from airflow_provider_jmsjca.engine.collecting.batcher import CollectionControl
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.engine.delivering.statistics import Counts, Statistics


class MeasuredListener(Protocol):
    """The part of a listener from which its metrics are read."""

    settings: ListenerSettings

    @property
    def running(self) -> bool:
        """Whether the listener was started and hasn't stopped."""

    @property
    def suspended(self) -> bool:
        """Whether delivery is suspended by hand."""

    @property
    def states(self) -> Mapping[str, ActivationState]:
        """The state of each connection by its name."""

    @property
    def counts(self) -> Counts:
        """Counts of messages since the last start."""

    def statistics(self) -> Statistics:
        """Return a snapshot of the listener's statistics."""


def measured(listener: MeasuredListener) -> Measured:
    """Return the current metrics of a listener; call it from any thread.

    Counters start at 0 at each start of the listener.
    """
    settings, counts, statistics = listener.settings, listener.counts, listener.statistics()
    states = listener.states.values()
    up = sum(each is ActivationState.UP for each in states)
    return Measured(
        tags={
            "activation": settings.whole or settings.name,
            "destination": ", ".join(map(str, settings.delivery.sources)),
            "kind": "listener",
        },
        values=counted(counts)
        | {
            "dead_letters": statistics.dead_lettered,
            "outages": statistics.outages,
            "handler_seconds": statistics.handler_seconds,
            "connections_up": up,
            "connections_down": len(states) - up if listener.running else 0,
            "suspended": int(listener.suspended),
            "in_flight": statistics.in_flight,
            "running_calls": statistics.active,
        },
    )


def measured_collection(identity: Identity, control: CollectionControl) -> Measured:
    """Return the current metrics of a collector; call it from any thread.

    Args:
        identity: Describes the collector's run, for the tags of the metrics.
        control: Holds the counts of the collector.
    """
    suspended = control.suspended.is_set()
    return Measured(
        tags=tags_of(identity),
        values={
            "deliveries": control.received,
            "commits": control.stored,
            "sealed_rows": control.stored,
            "outages": control.outages,
            "connections_up": int(control.connected),
            "connections_down": int(not control.connected and not suspended),
            "suspended": int(suspended),
            "in_flight": control.in_flight,
        },
    )


def tags_of(identity: Identity) -> dict[str, str]:
    """Return the tags of an activation's metrics: its name, destination and kind."""
    return {
        "activation": identity.activation,
        "destination": identity.destination,
        "kind": str(identity.kind),
    }


def counted(counts: Counts) -> dict[str, float]:
    """Return the message counters by their names in `core.metrics`."""
    return {
        "deliveries": counts.delivered,
        "redeliveries": counts.redelivered,
        "commits": counts.committed,
        "rollbacks": counts.rolled_back,
        "moves": counts.moved,
        "deletions": counts.deleted,
        "parked": counts.parked,
        "repeats": counts.repeated,
        "settlement_failures": counts.failed,
        "in_doubt": counts.in_doubt,
    }
