from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_jmsjca.errors import FencedError, SpoolError
from airflow_provider_jmsjca.spark.attempts import (
    Done,
    RejectsFile,
    check_fence,
    committing,
    current_fence,
    take_fence,
)

DONE = Done(
    batch_id="b",
    fence=2,
    rows=10,
    stored={"/data/t": 9},
    rejected=1,
    rejects=(RejectsFile(file="rejects-000002-000000.jsonl", rows=1, sha256="ab"),),
    finished="2026-01-01T00:00:00.000+00:00",
)


def test_each_attempt_shuts_out_the_ones_before(tmp_path: Path) -> None:
    assert current_fence(tmp_path) == 0
    assert take_fence(tmp_path) == 1
    check_fence(tmp_path, 1)
    assert take_fence(tmp_path) == 2
    check_fence(tmp_path, 2)
    with pytest.raises(FencedError, match=r"this is attempt 1, but attempt 2 may commit: stopping"):
        check_fence(tmp_path, 1)
    assert sorted(item.name for item in tmp_path.glob("fence-*")) == ["fence-000001", "fence-000002"]


def test_an_attempt_that_never_began_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FencedError):
        check_fence(tmp_path, 1)


def test_no_attempt_begins_while_another_commits(tmp_path: Path) -> None:
    with (
        committing(tmp_path),
        pytest.raises(SpoolError, match=r"commit\.lock: another attempt has held it for 0 s"),
        committing(tmp_path, timeout=0),
    ):
        pytest.fail("two held the lock")
    assert take_fence(tmp_path) == 1


def test_a_report_is_written_once_and_read_back(tmp_path: Path) -> None:
    assert Done.read(tmp_path) is None
    assert DONE.create(tmp_path)
    assert not DONE.create(tmp_path)
    assert Done.read(tmp_path) == DONE
    assert json.loads((tmp_path / "_DONE").read_text()) == {
        "batch_id": "b",
        "fence": 2,
        "finished": "2026-01-01T00:00:00.000+00:00",
        "rejected": 1,
        "rejects": [{"file": "rejects-000002-000000.jsonl", "rows": 1, "sha256": "ab"}],
        "rows": 10,
        "stored": {"/data/t": 9},
    }


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"rejects": []}'])
def test_a_report_of_another_form_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "_DONE").write_text(content)
    with pytest.raises(SpoolError, match="_DONE: not the report of a finished batch"):
        Done.read(tmp_path)
