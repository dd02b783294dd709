"""Backlog, deliveries and failures of activations over the last day, minute by minute."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from airflow_provider_jmsjca.store.base import ActivationSample, Store

__all__ = ["ActivationSample", "samples"]


def samples(store: Store, activation: str, since: datetime) -> Sequence[ActivationSample]:
    """Return the samples of an activation from a time on, the oldest first.

    A minute without a sample: no process ran the activation, or the store was away. The store keeps samples
    for a day.

    Args:
        store: Where the activation is registered.
        activation: Name as stored: `ActivationStatus.name`.
        since: With a time zone.

    Raises:
        TransientStoreError: The store can't be used now.
    """
    return store.activations.samples(activation, since)
