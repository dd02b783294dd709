from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_jmsjca.errors import FencedError, SpoolError
from airflow_provider_jmsjca.spool.attempts import (
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
    rejects=(RejectsFile(file="rejects-000002-000000.jsonl", rows=1, sha256="ab" * 32),),
    finished="2026-01-01T00:00:00.000+00:00",
    violations={"positive": 2},
    rescued=3,
    rejects_stored=True,
    evolved=("table t: column 'v': INT to BIGINT",),
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
        pytest.raises(SpoolError, match=r"commit\.lock: another process has held its lock for 0 s"),
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
        "rejects": [{"file": "rejects-000002-000000.jsonl", "rows": 1, "sha256": "ab" * 32}],
        "rows": 10,
        "stored": {"/data/t": 9},
        "violations": {"positive": 2},
        "rescued": 3,
        "rejects_stored": True,
        "evolved": ["table t: column 'v': INT to BIGINT"],
    }


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"rejects": []}'])
def test_a_report_of_another_form_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "_DONE").write_text(content)
    with pytest.raises(SpoolError, match="_DONE: not the report of a finished batch"):
        Done.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"rejects": [{"file": "../../file", "rows": 1, "sha256": "ab" * 32}]}, "rejects: file: expected"),
        ({"rejects": [{"file": "/etc/passwd", "rows": 1, "sha256": "ab" * 32}]}, "rejects: file: expected"),
        ({"rejects": [{"file": "rejects-000001-000000.jsonl\n", "rows": 1, "sha256": "ab" * 32}]}, "file"),
        ({"rejects": [{"file": "rejects-000001-000000.jsonl", "rows": 1, "sha256": 7}]}, "sha256"),
        ({"rejects": [7]}, "rejects: expected file, rows and sha256, found 7"),
        ({"rejects": 7}, "rejects: expected list"),
        ({"rejected": "many"}, "rejected: expected a whole number"),
        ({"rejected": True}, "rejected: expected a whole number"),
        ({"stored": {"/t": -1}}, "stored: /t: expected a whole number"),
        ({"stored": []}, "stored: expected dict"),
        ({"more": 1}, "expected an object with"),
    ],
)
def test_a_report_with_a_wrong_field_is_refused(
    tmp_path: Path, change: dict[str, object], fault: str
) -> None:
    DONE.create(tmp_path)
    path = tmp_path / "_DONE"
    document = json.loads(path.read_text()) | change
    path.write_text(json.dumps(document))
    with pytest.raises(SpoolError, match=fault):
        Done.read(tmp_path)
