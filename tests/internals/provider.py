from __future__ import annotations

from airflow_provider_jmsjca.get_provider_info import get_provider_info

__all__ = ["get_provider_info"]
