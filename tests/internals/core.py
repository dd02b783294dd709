from __future__ import annotations

from airflow_provider_jmsjca.core.activation.rules import SINGLE_DESTINATIONS
from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.configuration.destination_options import prefetch_of
from airflow_provider_jmsjca.core.copies.in_progress import RUN, SOURCE
from airflow_provider_jmsjca.core.copies.load_balancing import with_origin
from airflow_provider_jmsjca.core.copies.parking import parked_copy, unparked
from airflow_provider_jmsjca.core.delivery.outage import ActivationState, RefusedDestinations
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.options import Level
from airflow_provider_jmsjca.core.options.choices import ConcurrencyMode

__all__ = [
    "RUN",
    "SINGLE_DESTINATIONS",
    "SOURCE",
    "ActivationState",
    "Backoff",
    "ConcurrencyMode",
    "Failure",
    "Level",
    "RefusedDestinations",
    "parked_copy",
    "prefetch_of",
    "unparked",
    "with_origin",
]
