"""Parts of a batch: what is in them, where their messages are in the batch, and why a job failed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_jmsjca.errors import ConfigurationError, FencedError, PoisonMessageError, SpoolError
from airflow_provider_jmsjca.spark.data_failure import data_failure
from airflow_provider_jmsjca.spool.attempts import take_fence
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.rows import table_to_messages
from airflow_provider_jmsjca.spool.splits import (
    DataFailure,
    RowRange,
    all_rows,
    lineage,
    make_part,
    part_folder,
    parts,
    position_in_batch,
)
from tests.unit.spool.batches import MakeRows, OpenBatch


def bodies(manifest: Manifest) -> list[str]:
    found = []
    for path in manifest.segment_paths():
        found += [str(item.message.body) for item in table_to_messages(pq.ParquetFile(path).read())]
    return found


@pytest.fixture
def large(open_batch: OpenBatch, rows: MakeRows) -> Manifest:
    """Messages 0 to 9 in three segments, the second of two row groups."""
    with open_batch() as batch:
        batch.seal(rows(range(3)))
        batch.add(rows(range(3, 6)))
        batch.seal(rows(range(6, 8)))
        batch.seal(rows(range(8, 10)))
        return batch.complete()


def test_a_batch_is_split_into_halves_until_each_message_stands_alone(large: Manifest) -> None:
    fence = take_fence(large.folder)
    todo, alone = [all_rows(large)], []
    while todo:
        rows = todo.pop()
        part = make_part(large, rows, fence)
        part.verify()
        expected = [f"body {number}" for number in range(rows.first, rows.last + 1)]
        assert bodies(part) == expected
        for segment in part.segments:
            table = pq.ParquetFile(part.folder / segment.file).read(["batch_id", "segment", "position"])
            for position, row in enumerate(table.to_pylist()):
                assert row == {"batch_id": part.batch_id, "segment": segment.number, "position": position}
                place = position_in_batch(large, rows, segment.number, position)
                source = large.folder / f"segment-{place[0]:06d}.parquet"
                body = pq.ParquetFile(source).read(["body"]).column("body")[place[1]].as_py()
                assert body.decode() == expected.pop(0)
        if rows.first == rows.last:
            alone.append(rows)
        else:
            todo += rows.halves()
    assert sorted(alone) == [RowRange(number, number) for number in range(10)]
    assert len(parts(large.folder)) == 18
    assert part_folder(large, RowRange(0, 4)).name == "0-4"


def test_a_part_is_made_once_and_by_the_newest_attempt_only(large: Manifest) -> None:
    first = take_fence(large.folder)
    part = make_part(large, RowRange(0, 4), first)
    assert json.loads((part.folder / "split.json").read_text()) == {"of": "b1", "first": 0, "last": 4}
    second = take_fence(large.folder)
    with pytest.raises(FencedError):
        make_part(large, RowRange(5, 9), first)
    assert make_part(large, RowRange(0, 4), first) == make_part(large, RowRange(0, 4), second) == part
    assert [path.name for path in (large.folder / "splits").iterdir()] == ["0-4"]


def test_the_name_of_a_part_is_never_too_long(open_batch: OpenBatch, rows: MakeRows) -> None:
    with open_batch("b" * 175) as batch:
        batch.seal(rows(range(4)))
        manifest = batch.complete()
    names = {
        make_part(manifest, part, take_fence(manifest.folder)).batch_id for part in RowRange(0, 3).halves()
    }
    assert len(names) == 2
    assert max(map(len, names)) <= 180


def test_what_became_of_each_part_can_be_read(large: Manifest, tmp_path: Path) -> None:
    fence = take_fence(large.folder)
    for rows in (RowRange(0, 4), RowRange(5, 9), RowRange(0, 2), RowRange(3, 4)):
        make_part(large, rows, fence)
    failure = DataFailure(exception_class="E", exception_message="m" * 10_000, stored=("/t",))
    failure.record(part_folder(large, RowRange(0, 2)), 3)
    failure.record(part_folder(large, RowRange(0, 2)), 3)
    assert lineage(large) == [
        ("0-4", "split"),
        ("0-2", "failed: E: " + "m" * 4_000),
        ("3-4", "not run"),
        ("5-9", "not run"),
    ]
    assert DataFailure.read(part_folder(large, RowRange(0, 2)))[3].stored == ("/t",)
    assert DataFailure.read(tmp_path / "nowhere") == {}
    (part_folder(large, RowRange(0, 2)) / "failed-000004.json").write_text("[]")
    with pytest.raises(SpoolError, match="why an attempt failed"):
        lineage(large)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("x"), "ValueError"),
        (ZeroDivisionError("x"), "ZeroDivisionError"),
        (PoisonMessageError("x"), "airflow_provider_jmsjca.errors.PoisonMessageError"),
        (ConfigurationError("x"), None),
        (SpoolError("x"), None),
        (KeyError("x"), None),
        (MemoryError("x"), None),
        (ConnectionResetError("x"), None),
        (KeyboardInterrupt("x"), None),
    ],
)
def test_an_error_of_the_driver_is_due_to_the_data_or_not(error: BaseException, expected: str | None) -> None:
    found = data_failure(error, ("/t",))
    assert (None if found is None else found.exception_class) == expected
    assert found is None or (found.exception_message, found.stored) == ("x", ("/t",))


class _Captured:
    """Makes exceptions as PySpark makes them of the JVM's."""

    @staticmethod
    def of_spark(state: str | None, condition: str, cause: BaseException | None = None) -> BaseException:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - only here

        class Captured(PySparkException):
            _cause = cause

            def __init__(self) -> None:
                Exception.__init__(self)

            def getSqlState(self) -> str | None:  # noqa: N802 - PySpark's
                return state

            def getCondition(self) -> str | None:  # noqa: N802 - PySpark's
                return condition

            def __str__(self) -> str:
                return f"[{condition}] said\n\nJVM stacktrace:\nmore"

        return Captured()

    @staticmethod
    def of_python(last: str) -> BaseException:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - only here

        class PythonException(PySparkException):
            _cause = None

            def __init__(self) -> None:
                Exception.__init__(self)

            def __str__(self) -> str:
                return (
                    "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
                    f'  File "job.py", line 1, in f\n{last}\n\n\tat org.apache.spark.X'
                )

        return PythonException()


@pytest.mark.parametrize(
    ("state", "condition", "expected"),
    [
        ("22018", "CAST_INVALID_INPUT", "org.apache.spark.CAST_INVALID_INPUT"),
        ("P0001", "USER_RAISED_EXCEPTION", "org.apache.spark.USER_RAISED_EXCEPTION"),
        ("39000", "FAILED_EXECUTE_UDF", "org.apache.spark.FAILED_EXECUTE_UDF"),
        ("42703", "UNRESOLVED_COLUMN", None),
        ("58030", "TASK_WRITE_FAILED", None),
        (None, "lost", None),
    ],
)
def test_an_error_of_spark_is_due_to_the_data_by_its_sqlstate(
    state: str | None, condition: str, expected: str | None
) -> None:
    error = _Captured.of_spark(state, condition)
    for each in (error, _Captured.of_spark("58030", "TASK_WRITE_FAILED", error)):
        found = data_failure(each)
        assert (None if found is None else found.exception_class) == expected
        assert found is None or found.exception_message == f"[{condition}] said"


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("LookupError: nobody", ("LookupError", "nobody")),
        (
            "json.decoder.JSONDecodeError: Expecting value",
            ("json.decoder.JSONDecodeError", "Expecting value"),
        ),
        ("AssertionError", ("AssertionError", "")),
        ("ModuleNotFoundError: No module named 'x'", None),
        ("MemoryError", None),
        ("OSError: [Errno 28] No space left on device", None),
    ],
)
def test_an_error_of_a_python_function_is_due_to_the_data_unless_it_lacks_something(
    last: str, expected: tuple[str, str] | None
) -> None:
    found = data_failure(_Captured.of_spark(None, "Job aborted", _Captured.of_python(last)))
    assert (None if found is None else (found.exception_class, found.exception_message)) == expected
