"""Where batches are kept."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk.configuration import conf


def spool_path() -> Path:
    """Return the directory that `[jmsjca] spool_path` names; by default `jms-spool` under AIRFLOW_HOME."""
    configured = conf.get("jmsjca", "spool_path", fallback="")
    home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow"))
    return Path(configured) if configured else home.expanduser() / "jms-spool"
