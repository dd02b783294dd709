"""Batches on the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_jmsjca import JmsMessage
from tests.airflow.page.browsing import Browser
from tests.internals.spool import Row, SpoolBatch

pytestmark = [
    pytest.mark.usefixtures("store"),
    # A server of Airflow loads all of it, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


def test_batches_in_need_of_care_are_listed_and_others_if_asked_for(
    browser: Callable[..., Browser], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__SPOOL_PATH", str(tmp_path / "spool"))
    viewer = browser("viewer")
    assert "no such spool" in viewer.get("batches").text
    source = "queue://<b>orders</b>"
    with SpoolBatch(tmp_path / "spool", "finished", source=source, activation="a") as batch:
        batch.seal([Row(JmsMessage.text("x"), 1_700_000_000_000_000)])
        batch.complete()
    with SpoolBatch(tmp_path / "spool", "died", source=source, activation="a") as batch:
        batch.seal([Row(JmsMessage.text("x"), 1_700_000_000_000_000)])
    shown = viewer.get("batches").text
    assert ">died<" in shown
    assert ">unfinished<" in shown
    assert ">finished<" not in shown
    every = viewer.get("batches", all="1").text
    assert ">finished<" in every
    assert "queue://&lt;b&gt;orders&lt;/b&gt;" in every
