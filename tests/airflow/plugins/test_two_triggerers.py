"""Events that two triggerers store at the same time, in a real PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.postgres import Postgres

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("slow", ["early", "late"])
def test_each_event_has_a_run_when_two_triggerers_store_at_once(
    postgres: Postgres, tmp_path: Path, slow: str
) -> None:
    """One was believed dead while it lived. It is slow after it wrote its event, or to commit."""
    environment = os.environ | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.new_database(),
        "PYTHONPATH": str(ROOT),
    }
    environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] = environment[
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
    ]
    for command in (
        ["airflow", "db", "migrate"],
        ["tests.airflow.plugins.two_triggerers", slow, str(tmp_path / "without")],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert json.loads((tmp_path / "without").read_text()) == []
