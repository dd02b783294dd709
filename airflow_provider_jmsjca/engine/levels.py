"""The machine's log levels as Python's."""

from __future__ import annotations

import logging

from airflow_provider_jmsjca.core.delivery.decisions import Level

LEVELS = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.ERROR: logging.ERROR,
}
