"""What task runs need is where the Airflow tests have it."""

from __future__ import annotations

from tests.airflow.conftest import metadata, migrated_database

__all__ = ["metadata", "migrated_database"]
