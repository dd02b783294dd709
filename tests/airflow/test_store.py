"""`airflow jms store`, and where an installation has its store."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.cli import cli_parser

from tests.contract.store.conftest import url_of
from tests.internals.hooks import installed_store
from tests.internals.store import REVISIONS
from tests.servers.postgres import Postgres


def run(*arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", "store", *arguments])
    parsed.func(parsed)


def test_without_a_url_it_is_a_file_in_airflows_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "100% home?"
    monkeypatch.setenv("AIRFLOW_HOME", str(home))
    run("check")
    assert (home / "jms-store.db").exists()
    assert f"can be used: schema {REVISIONS[-1]}" in capsys.readouterr().out
    run("upgrade")
    assert f"is up to date: schema {REVISIONS[-1]}" in capsys.readouterr().out


def test_postgresql_is_upgraded_by_the_command_alone(
    postgres: Postgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", url_of("postgresql", tmp_path, request))
    with pytest.raises(SystemExit):
        run("check")
    said = capsys.readouterr().err
    assert "no tables yet; run: airflow jms store upgrade" in said
    assert postgres.password not in said
    run("upgrade")
    assert f"was empty, and is upgraded: schema {REVISIONS[-1]}" in capsys.readouterr().out
    run("check")
    installed_store().close()


def test_a_url_that_cannot_be_used_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", "mysql://app:secret@db/jms")
    with pytest.raises(SystemExit):
        run("upgrade")
    assert capsys.readouterr().err.startswith("error: store_url: got mysql://app:***@db/jms; expected sqlite")
