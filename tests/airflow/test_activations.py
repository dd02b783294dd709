"""`airflow jms activations`."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.cli import cli_parser
from airflow.utils.platform import getuser

from airflow_provider_jmsjca import (
    ActivationKind,
    RunReport,
    RunStatus,
    WantedState,
    list_activations,
    open_store,
)

NAMES = ("bills at stomp://a:61613", "far", "orders at stomp://a:61613")
HOSTILE = "disk\x1b[31m <b>full</b> [red]"
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def run(*arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", "activations", *arguments])
    parsed.func(parsed)


def report(activation: str, number: int = 0, **changes: Any) -> RunReport:
    given: dict[str, Any] = {
        "run": f"{activation} {number}",
        "activation": activation,
        "kind": ActivationKind.LISTENER,
        "owner": "dag.task",
        "broker": "stomp://a:61613",
        "destination": "queue://orders",
        "status": RunStatus.UP,
        "started_at": NOON,
        "since": NOON,
    }
    return RunReport(**given | changes)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", url)
    with contextlib.closing(open_store(url)) as opened:
        yield opened


def test_stopped_activations_are_listed_and_resumed_j172(
    store: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in NAMES:
        store.activations.request_state(name, WantedState.STOPPED, reason=HOSTILE, asked_by="the handler")
    run("list", "--limit", "2", "--output", "json")
    shown = capsys.readouterr()
    rows = json.loads(shown.out)
    assert [each["activation"] for each in rows] == list(NAMES[:2])
    assert (rows[0]["state"], rows[0]["wanted"], rows[0]["reason"]) == ("no run", "stopped", HOSTILE)
    assert "--after 2" in shown.err
    run("list")
    assert "\x1b" not in capsys.readouterr().out
    run("resume", "orders", "far")
    assert capsys.readouterr().out.startswith("2 activations resumed")
    for arguments, said in {
        ("resume",): "no activations selected; give their names",
        ("resume", "orders"): "activation 'orders' is not suspended, drained or stopped",
        ("resume", "bills", "--all"): "both given",
    }.items():
        with pytest.raises(SystemExit):
            run(*arguments)
        assert said in capsys.readouterr().err
    run("resume", "--all")
    assert capsys.readouterr().out.startswith("1 activations")


@pytest.mark.usefixtures("store")
def test_an_empty_list_says_when_activations_register(capsys: pytest.CaptureFixture[str]) -> None:
    run("list")
    assert "registers when it starts; --ended lists" in capsys.readouterr().err
    run("list", "--ended")
    assert capsys.readouterr().err.endswith("registers when it starts\n")


@pytest.mark.usefixtures("store")
def test_to_suspend_all_of_none_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    run("suspend", "--all", "--reason", "backup")
    assert capsys.readouterr().err.startswith("note: no activation is registered, so none is suspended")


def test_runs_are_listed_and_shown(store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    store.activations.report(
        [
            report(NAMES[2], committed=7, last_error=HOSTILE, last_error_at=NOON),
            report(NAMES[0], status=RunStatus.ENDED),
        ]
    )
    run("list", "--output", "json")
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["committed"], row["note"], row["owner"]) == ("up", "7", HOSTILE, "dag.task")
    run("list", "--ended", "--output", "json")
    assert [each["state"] for each in json.loads(capsys.readouterr().out)] == ["ended", "up"]
    for output in ("table", "plain"):
        run("show", "orders", "--output", output)
        shown = capsys.readouterr().out
        assert "\x1b[31m" not in shown
        assert "<b>full</b>" in shown
    with pytest.raises(SystemExit):
        run("show", "unknown")
    assert "activation 'unknown' is not registered" in capsys.readouterr().err


@pytest.mark.parametrize("status", [RunStatus.UP, RunStatus.ENDED])
def test_values_of_a_run_that_reports_no_more_have_their_time(
    store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: RunStatus
) -> None:
    given = report(NAMES[2], status=status, backlog=7, last_error=HOSTILE, last_error_at=NOON)
    # No process of this name lives, so the first run is lost.
    with contextlib.closing(open_store(f"sqlite:///{tmp_path / 'store.db'}", where="elsewhere/7")) as dead:
        dead.activations.report([given])
    store.activations.report([report(NAMES[0])])
    run("list", "--ended", "--output", "json")
    living, old = json.loads(capsys.readouterr().out)
    assert (living["values_at"], living["note"]) == ("", "")
    assert (old["state"], old["backlog"]) == ("ended" if status is RunStatus.ENDED else "lost", "7")
    assert old["values_at"] == old["heartbeat"]
    run("list", "--ended", "--output", "plain")
    assert f"values of {old['values_at']}" in capsys.readouterr().out
    run("show", "orders", "--output", "plain")
    assert "values_at" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "wanted"),
    [("suspend", WantedState.SUSPENDED), ("drain", WantedState.DRAINED), ("stop", WantedState.STOPPED)],
)
def test_a_state_is_requested_with_a_reason_and_a_user(
    store: Any, capsys: pytest.CaptureFixture[str], command: str, wanted: WantedState
) -> None:
    store.activations.report([report(NAMES[2])])
    run(command, "orders", "new at stomp://b:1", "--reason", "maintenance")
    assert f"{NAMES[2]}: {wanted}" in capsys.readouterr().out
    for name in (NAMES[2], "new at stomp://b:1"):
        order = store.activations.order(name)
        assert (order.wanted, order.reason, order.asked_by) == (wanted, "maintenance", f"user {getuser()}")
    run("list", "--output", "json")
    assert json.loads(capsys.readouterr().out)[-1]["note"].startswith(f"{wanted} by user ")
    for arguments, said in {
        (command, "orderz", "--reason", "x"): "activation 'orderz' is not registered",
        (command, "orders", "--reason", " "): "--reason is empty",
    }.items():
        with pytest.raises(SystemExit):
            run(*arguments)
        assert said in capsys.readouterr().err


def test_a_long_list_is_quick(store: Any) -> None:
    """Airflow's printing of the table is left out."""
    store.activations.report([report(f"a{number:03}", number) for number in range(500)])
    began = time.process_time()
    assert len(list_activations(store)) == 500
    assert time.process_time() - began < 0.3
