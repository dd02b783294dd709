"""Backlog, deliveries and failures of activations over the last day, minute by minute."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from airflow_provider_jmsjca.store.base import ActivationSample, Store

__all__ = ["ActivationSample", "samples"]


def samples(store: Store, activation: str, since: datetime) -> Sequence[ActivationSample]:
    """Return the samples of an activation from a time on, the oldest first.

    A minute has no sample if no process ran the activation, or if the store was unavailable. The store keeps
    samples for a day.

    Args:
        store: The store in which the activation is registered.
        activation: Name as stored, see `ActivationStatus.name`.
        since: Time of the first sample, with a time zone.

    Raises:
        TransientStoreError: The store can't be used now.
    """
    return store.activations.samples(activation, since)
