"""Airflow's database is restored to an older copy, while broker, spool and store have gone on."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow import settings
from airflow.cli import cli_parser
from airflow.models import DagRun
from airflow.sdk import DAG
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_jmsjca import JmsCollectOperator, Manifest, manifest_messages
from tests.airflow.conftest import DATABASE
from tests.airflow.task_runs import Outcome, serialized

Publish = Callable[..., None]
pytestmark = [
    pytest.mark.usefixtures("metadata", "server"),
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


def copy(target: Path) -> None:
    """Copy the database while Airflow uses it, as `sqlite3 .backup` does."""
    with closing(sqlite3.connect(DATABASE)) as there, closing(sqlite3.connect(target)) as here:
        there.backup(here)


def restore(source: Path) -> None:
    settings.dispose_orm(do_log=False)
    shutil.copy(source, DATABASE)
    settings.configure_orm()


def runs() -> int:
    with create_session() as session:
        return len(session.scalars(select(DagRun.run_id)).all())


def bodies(outcome: Outcome) -> list[object]:
    manifest = Manifest.read(outcome.value["manifest"])
    return [stored.message.body for stored in manifest_messages(manifest)]


def test_a_run_that_airflow_makes_again_finds_its_batch(
    tmp_path: Path, publish: Publish, capsys: pytest.CaptureFixture[str]
) -> None:
    spool, copied = tmp_path / "spool", tmp_path / "airflow.db"

    def run(day: int) -> Outcome:
        with DAG("orders", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
            JmsCollectOperator(
                task_id="collect",
                jms_conn_id="jms_test",
                destination="orders",
                idle_time=0.1,
                spool_path=str(spool),
            )
        serialized(dag)
        date = datetime(2026, 1, day, tzinfo=UTC)
        return Outcome(dag.test(run_after=date, logical_date=date), "collect")

    publish("one")
    run(2)
    copy(copied)
    publish("two")
    second = run(3)
    assert bodies(second) == ["two"]
    restore(copied)
    assert runs() == 1

    # The spool names the batches of runs that Airflow has forgotten.
    arguments = cli_parser.get_parser().parse_args(
        ["jms", "spool", "list", "--spool-path", str(spool), "--output", "json"]
    )
    arguments.func(arguments)
    listed = {each["batch"]: each["state"] for each in json.loads(capsys.readouterr().out)}
    assert listed[second.value["batch_id"]] == "collected"
    assert len(listed) == 2

    # Made again by the schedule, the run has the same id, so it finds its batch, and leaves newer messages.
    publish("three")
    again = run(3)
    assert again.run.run_id == second.run.run_id
    assert bodies(again) == ["two"]
    assert again.value["manifest"] == second.value["manifest"]
    assert bodies(run(4)) == ["three"]
