"""Findings that need neither Airflow nor a broker."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

from airflow_provider_jmsjca import ActivationKind, RunReport, RunStatus, open_store
from airflow_provider_jmsjca.operating.doctor import examine_store

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def run(number: int) -> RunReport:
    return RunReport(
        run=str(number),
        activation=f"orders.{number}",
        kind=ActivationKind.LISTENER,
        owner=f"task listen.{number}",
        destination="queue://orders",
        broker="stomp://broker:61613",
        status=RunStatus.UP,
        started_at=NOON,
        since=NOON,
    )


def test_lost_activations_of_one_process_are_one_finding(tmp_path: Path) -> None:
    """A killed triggerer may have had hundreds."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    for where, numbers in (("host/7", range(3)), ("host/8", range(3, 4))):
        with contextlib.closing(open_store(url, where=where)) as store:
            store.activations.report([run(number) for number in numbers])
    with contextlib.closing(open_store(url)) as store:
        many, one = examine_store(store)
    assert many.symptom == "activation orders.0 and 2 others are lost"
    assert "sent its last heartbeat at 2" in many.cause
    assert many.fix == "clear or start again: task listen.0; the others: airflow jms activations list"
    assert one.symptom == "activation orders.3 is lost"
    assert one.fix == "clear or start again: task listen.3"
