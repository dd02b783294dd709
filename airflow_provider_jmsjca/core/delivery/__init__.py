"""The delivery machine: decides how an activation handles each message, and does no I/O.

`DeliveryMachine.handle(event, now)` returns decisions; `events` and `decisions` say what a driver sends and
carries out. May import `core.copies` and `core.redelivery`.
"""

from __future__ import annotations

from airflow_provider_jmsjca.core.delivery.machine import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings, OutageSettings

__all__ = ["ActivationState", "DeliveryMachine", "DeliverySettings", "OutageSettings"]
