from __future__ import annotations

from airflow_provider_jmsjca.triggers import holding, listen, producers, receipts, references, releasing
from airflow_provider_jmsjca.triggers.activation_options import ActivationOptions
from airflow_provider_jmsjca.triggers.examination import examine_airflow, examine_connections
from airflow_provider_jmsjca.triggers.listen import JmsListenTrigger
from airflow_provider_jmsjca.triggers.payload import (
    HELD_KEY,
    OUTCOME_LIST_KEY,
    STARTED_KEY,
    has_number,
    hold_records,
    hold_token,
    message_outcome,
    outcome_key,
    receipt_of,
    with_held_keys,
    with_listed_outcome,
    with_number,
)
from airflow_provider_jmsjca.triggers.producers import MessageProducer, ReadyProducer
from airflow_provider_jmsjca.triggers.ready import JmsReadyTrigger
from airflow_provider_jmsjca.triggers.spark_application import JmsSparkApplicationTrigger

__all__ = [
    "HELD_KEY",
    "OUTCOME_LIST_KEY",
    "STARTED_KEY",
    "ActivationOptions",
    "JmsListenTrigger",
    "JmsReadyTrigger",
    "JmsSparkApplicationTrigger",
    "MessageProducer",
    "ReadyProducer",
    "examine_airflow",
    "examine_connections",
    "has_number",
    "hold_records",
    "hold_token",
    "holding",
    "listen",
    "message_outcome",
    "outcome_key",
    "producers",
    "receipt_of",
    "receipts",
    "references",
    "releasing",
    "with_held_keys",
    "with_listed_outcome",
    "with_number",
]
