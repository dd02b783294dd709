from __future__ import annotations

from airflow_provider_jmsjca.store.base import (
    EVERYTHING,
    KEPT_HISTORY,
    SILENT_FOR,
    ActivationSample,
    AttemptSelection,
    LimboEntry,
    stored_name,
)
from airflow_provider_jmsjca.store.sql import database
from airflow_provider_jmsjca.store.sql.database import Database
from airflow_provider_jmsjca.store.sql.store import SqlStore
from airflow_provider_jmsjca.store.sql.tables import METADATA, REVISIONS, VERSION_TABLE

__all__ = [
    "EVERYTHING",
    "KEPT_HISTORY",
    "METADATA",
    "REVISIONS",
    "SILENT_FOR",
    "VERSION_TABLE",
    "ActivationSample",
    "AttemptSelection",
    "Database",
    "LimboEntry",
    "SqlStore",
    "database",
    "stored_name",
]
