"""Rejected rows of batches are listed and shown until they are on a dead-letter queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.operating.rejects import list_rejects, show_reject
from airflow_provider_jmsjca.spark.rejects import Reject
from airflow_provider_jmsjca.spool.attempts import Done, take_fence
from airflow_provider_jmsjca.spool.files import seal
from airflow_provider_jmsjca.spool.manifest import Manifest
from tests.unit.spool.batches import MakeRows, OpenBatch, write_rejects

CLASS = "airflow_provider_jmsjca.errors.PoisonMessageError"


def reject(segment: int, position: int, message: str = 'amount, found the string "x"') -> Reject:
    return Reject(segment=segment, position=position, exception_class=CLASS, exception_message=message)


def done(manifest: Manifest, *rejects: Reject) -> Path:
    folder = manifest.folder
    assert isinstance(folder, Path)
    take_fence(folder)
    Done(
        batch_id=manifest.batch_id,
        fence=1,
        rows=manifest.rows,
        stored={"/t": manifest.rows - len(rejects)},
        rejected=len(rejects),
        rejects=(write_rejects(folder, 1, 0, rejects),),
        finished="2026-01-01",
    ).create(folder)
    return folder.parent


def test_rejected_rows_are_listed_by_batch_and_reason(
    finished: Manifest, open_batch: OpenBatch, rows: MakeRows
) -> None:
    done(
        finished,
        reject(0, 1),
        reject(0, 2, 'amount, found the string "y"'),
        reject(1, 0, "password=hunter2 no"),
    )
    with open_batch("b2") as other:
        other.seal(rows([9]))
        spool = done(other.complete(), reject(0, 0))
    with open_batch("b3") as collected:
        collected.seal(rows([8]))
        collected.complete()
    found = list_rejects(spool)
    assert [(each.batch_id, each.count, each.row, each.source) for each in found.groups] == [
        ("b1", 2, "0/1", "queue://orders"),
        ("b1", 1, "1/0", "queue://orders"),
        ("b2", 1, "0/0", "queue://orders"),
    ]
    assert found.groups[0].reason == 'PoisonMessageError: amount, found the string "…"'
    assert "hunter2" not in found.groups[1].reason
    assert (found.more, found.faults) == (False, ())
    assert sum(each.count for each in list_rejects(spool, limit=2).groups) == 2
    assert list_rejects(spool, limit=2).more
    seal(finished.folder / "dead-lettered-000000002", b"")
    assert [each.row for each in list_rejects(spool).groups] == ["1/0", "0/0"], "the others were sent"
    seal(finished.folder / "dead-lettered-000000003", b"")
    assert [each.batch_id for each in list_rejects(spool).groups] == ["b2"]


def test_one_row_is_shown_with_its_message_and_reason(finished: Manifest) -> None:
    spool = done(finished, reject(0, 1), reject(1, 1, "pwd=hunter2 is wrong\x1b[2J"))
    seal(finished.folder / "dead-lettered-000000001", b"")
    sent, waits = show_reject(spool, "b1", "0/1"), show_reject(spool, "b1", "1/1")
    assert (sent.message.body, sent.sent, waits.message.body, waits.sent) == ("body 1", True, "body 4", False)
    assert (waits.row, waits.exception_class) == ("1/1", CLASS)
    assert "hunter2" not in waits.exception_message
    for row, fault in {
        "0/0": "row 0/0 of batch 'b1' was not rejected; see airflow jms dlq list --rejects",
        "7/7": "was not rejected",
        "17": "row '17': expected SEGMENT/POSITION, for example 0/17",
        "٣/1": "expected SEGMENT/POSITION",
    }.items():
        with pytest.raises(ConfigurationError, match=fault):
            show_reject(spool, "b1", row)
    with pytest.raises((SpoolError, ConfigurationError)):
        show_reject(spool, "../b1", "0/1")


def test_a_damaged_file_hides_no_other_batch(
    finished: Manifest, open_batch: OpenBatch, rows: MakeRows
) -> None:
    done(finished, reject(0, 1))
    with open_batch("b2") as other:
        other.seal(rows([9]))
        spool = done(other.complete(), reject(0, 0))
    path = spool / "b1" / "rejects-000001-000000.jsonl"
    path.write_text(path.read_text() + "{}\n")
    found = list_rejects(spool)
    assert [each.batch_id for each in found.groups] == ["b2"]
    assert "expected sha256" in found.faults[0]
