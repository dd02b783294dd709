"""`airflow jms activations`."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from airflow.cli import cli_parser

from airflow_provider_jmsjca.hooks.store import installed_store
from airflow_provider_jmsjca.store.base import WantedState


def run(*arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", "activations", *arguments])
    parsed.func(parsed)


def test_stopped_activations_are_listed_and_resumed_j172(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    names = ("orders at stomp://a:61613", "bills at stomp://a:61613", "far")
    with contextlib.closing(installed_store()) as store:
        for name in names:
            store.activations.want(name, WantedState.STOPPED, reason="disk\x1b full", asked_by="the handler")
    capsys.readouterr()
    run("list", "--limit", "2", "--output", "json")
    shown = capsys.readouterr()
    assert [each["activation"] for each in json.loads(shown.out)] == sorted(names)[:2]
    assert "--after 2" in shown.err
    run("list")
    assert "\x1b" not in capsys.readouterr().out
    run("resume", "orders", "far")
    assert capsys.readouterr().out == "2 activations resumed; their next runs consume again\n"
    for arguments, said in {
        ("resume",): "which activations? give their names",
        ("resume", "orders"): "activation 'orders' is not stopped",
        ("resume", "bills", "--all"): "both given",
    }.items():
        with pytest.raises(SystemExit):
            run(*arguments)
        assert said in capsys.readouterr().err
    run("resume", "--all")
    assert capsys.readouterr().out.startswith("1 activations")
