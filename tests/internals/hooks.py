from __future__ import annotations

from airflow_provider_jmsjca.hooks import connection_cache, metrics, store
from airflow_provider_jmsjca.hooks.destinations import find_destination, with_lookups
from airflow_provider_jmsjca.hooks.selectors import effective_selector
from airflow_provider_jmsjca.hooks.spark_submit import (
    ClusterAwayError,
    SparkApplication,
    kubernetes_client,
    spark_submit_hook,
)
from airflow_provider_jmsjca.hooks.spool import spark_properties, spool_path, spool_roots, store_environment
from airflow_provider_jmsjca.hooks.store import installed_store, shared_store

__all__ = [
    "ClusterAwayError",
    "SparkApplication",
    "connection_cache",
    "effective_selector",
    "find_destination",
    "installed_store",
    "kubernetes_client",
    "metrics",
    "shared_store",
    "spark_properties",
    "spark_submit_hook",
    "spool_path",
    "spool_roots",
    "store",
    "store_environment",
    "with_lookups",
]
