"""Parts of an installation that are examined at the same time, within a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from airflow_provider_jmsjca import ConnectionSettings
from airflow_provider_jmsjca.operating.findings import Finding
from airflow_provider_jmsjca.triggers import examination

PARTS = ["examine_airflow", "installed_runs", "examine_installed_spool", "examine_installed_store"]
LATE = {
    "examine_airflow": "triggerer, DAGs and watchers not examined",
    "examine_installed_spool": "spool not examined",
    "examine_installed_store": "store not examined",
}


def settings_of(conn_id: str) -> ConnectionSettings:
    return ConnectionSettings(scheme="vm", hosts=((conn_id, None),))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Any]], None]:
    """Let every part have no findings; return a function that replaces one part."""

    def replace(name: str, part: Callable[..., Any]) -> None:
        monkeypatch.setattr(examination, name, part)

    replace("examine_airflow", lambda: (examination._NOTHING_RECORDED, []))
    for name in PARTS[1:]:
        replace(name, lambda *_: [])
    return replace


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_does_not_answer_delays_no_other_and_is_named(
    name: str, answers: Callable[[str, Callable[..., Any]], None]
) -> None:
    released = threading.Event()

    def hangs(*_: object) -> Any:
        released.wait()
        return []

    answers(name, hangs)
    other = next(each for each in PARTS[2:] if each != name)
    answers(other, lambda *_: [Finding(symptom="of another part", cause="c", fix="f")])
    try:
        found = examination.examine_installation(settings_of, conn_ids=["a"], within=2)
    finally:
        released.set()
    late = [each.symptom for each in found if each.kind == "unknown"]
    assert LATE.get(name) in {*late, None}
    assert [each.symptom for each in found if each.kind == "problem"] == ["of another part"]


@pytest.mark.usefixtures("answers")
def test_all_parts_that_answer_have_no_findings() -> None:
    assert examination.examine_installation(settings_of, conn_ids=["a"], within=30) == []


def test_a_part_that_answers_at_the_deadline_is_not_late() -> None:
    class JustInTime(Future[str]):
        def result(self, timeout: float | None = None) -> str:
            if self.done():
                return super().result(timeout)
            self.set_result("found")
            raise TimeoutError

    assert examination._result(JustInTime(), 0.0, "late") == "found"
