from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spark.rejects import OTHER_REASONS, Reject, reject_reasons, rejected_messages
from airflow_provider_jmsjca.spool.attempts import Done, RejectsFile
from airflow_provider_jmsjca.spool.manifest import Manifest
from tests.unit.spool.batches import write_rejects


def reject(segment: int, position: int, why: str = "bad") -> Reject:
    return Reject(segment=segment, position=position, exception_class="x.Y", exception_message=why)


def finish(folder: Path, *files: RejectsFile) -> None:
    Done(
        batch_id="b1",
        fence=1,
        rows=5,
        stored={},
        rejected=0,
        rejects=files,
        finished="2026-01-01T00:00:00+00:00",
    ).create(folder)


def test_rejects_become_messages_again_in_the_order_received(finished: Manifest) -> None:
    first = write_rejects(finished.folder, 1, 0, [reject(1, 1, "late"), reject(0, 2)])
    second = write_rejects(finished.folder, 1, 1, [reject(0, 0), reject(1, 1, "named before")])
    finish(finished.folder, first, second)
    found = [
        (item.message.message_id, item.message.body, item.exception_class, item.exception_message)
        for item in rejected_messages(finished)
    ]
    assert found == [
        ("ID:0", "body 0", "x.Y", "bad"),
        ("ID:2", "body 2", "x.Y", "bad"),
        ("ID:4", "body 4", "x.Y", "late"),
    ]


def test_a_reason_shows_no_password(finished: Manifest) -> None:
    """Logs and XComs have it."""
    text = "no route to postgresql://me:s3cret@db/x"
    finish(finished.folder, write_rejects(finished.folder, 1, 0, [reject(0, 0, text)]))
    assert reject_reasons(finished) == {"no route to postgresql://***@db/x": 1}


def test_reasons_of_one_kind_count_together(finished: Manifest) -> None:
    why = [
        *["required but missing: 'items[3].price'", "required but missing: 'items[0].price'"],
        *["required but missing: 'by['é'].price'"],
        *[f"field 'a': the value is no DECIMAL(3,1), found the number {number}" for number in (2.55, 7.25)],
        *[f"field 'a': the value is no INT, found the string \"{text}\"" for text in ('x"', "y, found")],
        *[f'the body is not JSON, it begins with "{text}"' for text in ("<a>", "b\nc")],
        *["the amount is -3"] * 4,
    ]
    files = [write_rejects(finished.folder, 1, n, [reject(0, n, text)]) for n, text in enumerate(why)]
    finish(finished.folder, *files)
    found = reject_reasons(finished)
    assert list(found) == [
        "the amount is -3",
        "required but missing: 'items[…].price'",
        "field 'a': the value is no DECIMAL(3,1), found the number …",
        "field 'a': the value is no INT, found the string \"…\"",
        'the body is not JSON, it begins with "…"',
        "required but missing: 'by[…].price'",
    ]
    assert list(found.values()) == [4, 2, 2, 2, 2, 1]
    assert reject_reasons(finished, limit=2) == {**dict(list(found.items())[:2]), OTHER_REASONS: 7}
    (finished.folder / files[0].file).unlink()
    assert reject_reasons(finished)["required but missing: 'items[…].price'"] == 1


def test_reasons_of_damaged_avro_count_together(finished: Manifest) -> None:
    longer = "the body is longer than an Avro record of this schema, by"
    why = [
        *[f"field 'a[{abs(number)}]': the union has no branch {number}" for number in (7, -1)],
        *[f"field 'a': the enum has no symbol {number}" for number in (2, -(2**31))],
        *[f"field 'a': the value has a length of {size} bytes" for size in (-1, -64)],
        *[f"field 'a': expected a boolean, 0 or 1, found the byte {byte}" for byte in (2, 255)],
        *[f"field 'a': the map has a key twice, found the string \"{key}\"" for key in ("x", "")],
        *[f"{longer} 1 byte", f"{longer} 20 bytes"],
    ]
    finish(
        finished.folder,
        write_rejects(finished.folder, 1, 0, [reject(0, n, each) for n, each in enumerate(why)]),
    )
    assert reject_reasons(finished) == {
        "field 'a[…]': the union has no branch …": 2,
        "field 'a': the enum has no symbol …": 2,
        "field 'a': the value has a length of … bytes": 2,
        "field 'a': expected a boolean, 0 or 1, found the byte …": 2,
        "field 'a': the map has a key twice, found the string \"…\"": 2,
        f"{longer} … bytes": 2,
    }


def test_rejects_of_an_attempt_that_did_not_finish_do_not_count(finished: Manifest) -> None:
    write_rejects(finished.folder, 1, 0, [reject(0, 0)])
    counted = write_rejects(finished.folder, 2, 0, [reject(0, 1)])
    with pytest.raises(SpoolError, match="no _DONE"):
        list(rejected_messages(finished))
    finish(finished.folder, counted)
    assert [item.message.message_id for item in rejected_messages(finished)] == ["ID:1"]


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (reject(2, 0), "names segment 2, which the batch doesn't have"),
        (reject(0, 3), r"segment-000000\.parquet: a reject names row 3, the segment has 3"),
    ],
)
def test_a_reject_of_no_message_is_an_error(finished: Manifest, bad: Reject, fault: str) -> None:
    finish(finished.folder, write_rejects(finished.folder, 1, 0, [bad]))
    with pytest.raises(SpoolError, match=fault):
        list(rejected_messages(finished))


def test_a_changed_file_of_rejects_is_an_error(finished: Manifest) -> None:
    file = write_rejects(finished.folder, 1, 0, [reject(0, 0)])
    finish(finished.folder, file)
    (finished.folder / file.file).write_text("")
    with pytest.raises(SpoolError, match=rf"{file.file}: expected sha256 {file.sha256}, found e3b0c442"):
        list(rejected_messages(finished))
    (finished.folder / file.file).unlink()
    with pytest.raises(SpoolError, match=f"{file.file}: can't be read: No such file"):
        list(rejected_messages(finished))
