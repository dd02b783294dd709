"""Where servers keep what they fetch and what they write."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def cache_folder() -> Path:
    """Return the folder for downloads, shared by every checkout of one user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "airflow-provider-jmsjca"


def run_folder() -> Path:
    """Return the folder for data of running servers: `JMSJCA_RUN_DIR`, else `.run` of the repository."""
    return Path(os.environ.get("JMSJCA_RUN_DIR") or ROOT / ".run").resolve()
