"""Findings that need neither Airflow nor a broker."""

from __future__ import annotations

import contextlib
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    ActivationKind,
    ConnectionSettings,
    Destination,
    JmsMessage,
    Outgoing,
    RunReport,
    RunStatus,
    connect,
    list_activations,
    open_store,
)
from airflow_provider_jmsjca.operating.doctor import examine_broker, examine_store
from airflow_provider_jmsjca.transports.memory.administration import MemoryAdministration

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def run(number: int, **changes: Any) -> RunReport:
    fields: dict[str, Any] = {
        "run": str(number),
        "activation": f"orders.{number}",
        "kind": ActivationKind.LISTENER,
        "owner": f"task listen.{number}",
        "destination": "queue://orders",
        "broker": "stomp://broker:61613",
        "status": RunStatus.UP,
        "started_at": NOON,
        "since": NOON,
    }
    return RunReport(**fields | changes)


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


def test_the_last_error_explains_dead_letters_that_are_not_browsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryAdministration, "browse_note", "browsing marks messages as redelivered")
    name = uuid.uuid4().hex
    settings = ConnectionSettings(scheme="vm", hosts=((name, None),))
    letter = Outgoing(destination=Destination.queue("orders.dlq"), message=JmsMessage.text("x"))
    with (
        contextlib.closing(connect(settings)) as connection,
        contextlib.closing(open_store(f"sqlite:///{tmp_path / 'store.db'}")) as store,
    ):
        connection.send([letter])

        def cause(*reports: RunReport) -> str:
            store.activations.report(reports)
            runs = [each for found in list_activations(store, ended=True) for each in found.runs]
            [found] = [
                each
                for each in examine_broker("jms_a", lambda: settings, runs=runs)
                if "dead-letter queue orders.dlq" in each.symptom
            ]
            return found.cause.partition("; not browsed")[0]

        here: dict[str, Any] = {"broker": f"vm://{name}", "dead_lettered": 3, "last_error_at": NOON}
        elsewhere = here | {"broker": "vm://other", "last_error": "KeyError: elsewhere"}
        nothing_moved = here | {"dead_lettered": 0, "last_error": "KeyError: nothing moved"}
        assert cause(run(1, **elsewhere), run(2, **nothing_moved)) == "messages failed and were moved there"
        later = {"destination": "queue://prices", "last_error_at": NOON + timedelta(hours=1)}
        assert cause(run(3, **here | later, last_error="KeyError: later")) == (
            "activation orders.3 moved 3 messages to a dead-letter destination; its last error: "
            "KeyError: later"
        )
        ended = here | {"status": RunStatus.ENDED, "dead_lettered": 1}
        assert cause(run(4, **ended, last_error="ValueError: order 7 is refused")) == (
            "activation orders.4 moved 1 message to a dead-letter destination; its last error: "
            "ValueError: order 7 is refused"
        )


def test_a_lost_activation_that_was_started_again_is_no_finding_even_if_it_has_ended_since(
    tmp_path: Path,
) -> None:
    """A killed triggerer is replaced, and then the DAG is paused."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    for number, status in ((1, RunStatus.ENDED), (2, RunStatus.UP), (3, RunStatus.ENDED)):
        with contextlib.closing(open_store(url, where=f"host/{number}")) as store:
            store.activations.report([run(number, activation="orders", owner="asset orders", status=status)])
        with contextlib.closing(open_store(url)) as store:
            lost = [each.symptom for each in examine_store(store)]
        assert lost == (["activation orders is lost"] if number == 2 else [])
