"""Activation specs: the destinations to consume, concurrency, redelivery and failure handling.

This folder may import `core.configuration`, `core.options`, `core.redelivery` and `core.selector`.

Source: J46-J64, W13-W33, P6-P10, C14, I49.
"""

from airflow_provider_jmsjca.core.activation.reading import read_given, refuse_secrets, secret_fields
from airflow_provider_jmsjca.core.activation.spec import ActivationSpec

__all__ = ["ActivationSpec", "read_given", "refuse_secrets", "secret_fields"]
