from __future__ import annotations

from airflow_provider_jmsjca.page.access import form_token
from airflow_provider_jmsjca.page.app import application

__all__ = [
    "application",
    "form_token",
]
