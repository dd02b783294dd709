"""The ready-made job by a real spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds

from airflow_provider_jmsjca import Manifest, rejected_messages
from tests.internals.spark import messages_to_table
from tests.internals.spool import Done, take_fence
from tests.spark.conftest import MakeBatch, flight

ROOT = Path(__file__).parents[2]
SPARK_SUBMIT = Path(sys.executable).parent / "spark-submit"


def submit(
    manifest: Manifest, table: Path, schema: str | None = "carrier STRING NOT NULL, dep_delay DOUBLE NOT NULL"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            SPARK_SUBMIT,
            "--master", "local[2]",
            "--conf", "spark.ui.enabled=false",
            str(messages_to_table.__file__),
            "--manifest", manifest.uri,
            "--batch-id", manifest.batch_id,
            "--fence", str(take_fence(manifest.folder)),
            "--table", str(table),
            *(() if schema is None else ("--schema", schema)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=manifest.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip


def test_a_batch_goes_into_a_table_once_and_its_bad_messages_come_back(
    make_batch: MakeBatch, tmp_path: Path
) -> None:
    manifest = make_batch(
        [flight(number, "UA", float(number)) for number in range(50)],
        [flight(50, "AA", 1.0), flight(51, "AA", None), flight(52, "AA", "late")],
    )
    table = tmp_path / "table"
    first = submit(manifest, table)
    assert first.returncode == 0, first.stderr

    def rows() -> list[tuple[str, float, int, int]]:
        found = ds.dataset(table, format="parquet", partitioning="hive").to_table().to_pylist()
        return sorted(
            (row["carrier"], row["dep_delay"], row["jms_segment"], row["jms_position"]) for row in found
        )

    expected = [("AA", 1.0, 1, 0), *(("UA", float(number), 0, number) for number in range(50))]
    assert rows() == expected
    done = Done.read(manifest.folder)
    assert done is not None
    assert (done.rows, done.stored, done.rejected) == (53, {str(table): 51}, 2)
    assert [(item.message.message_id, item.exception_message) for item in rejected_messages(manifest)] == [
        ("ID:51", "required but missing: 'dep_delay'"),
        ("ID:52", "field 'dep_delay': the value is no DOUBLE, found the string \"late\""),
    ]

    # As if the driver had died just before it reported.
    (manifest.folder / "_DONE").unlink()
    second = submit(manifest, table)
    assert second.returncode == 0, second.stderr
    assert rows() == expected
    again = Done.read(manifest.folder)
    assert again is not None
    assert (again.fence, again.stored, again.rejected) == (2, done.stored, 2)


def test_a_wrong_hash_ends_the_job_with_one_line_and_nothing_written(
    make_batch: MakeBatch, tmp_path: Path
) -> None:
    manifest = make_batch([flight(0, "UA", 1.0)])
    path = manifest.segment_paths()[0]
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)
    table = tmp_path / "table"
    result = submit(manifest, table)
    assert result.returncode == 65
    # spark-submit hands on what the driver says on standard error as its standard output.
    lines = [line for line in result.stdout.splitlines() if line.startswith("SpoolError: ")]
    assert len(lines) == 1
    assert f"{path}: expected sha256 {manifest.segments[0].sha256}, found " in lines[0]
    assert "Traceback" not in result.stdout + result.stderr
    assert not table.exists()
    assert Done.read(manifest.folder) is None


def test_a_schema_spark_can_not_read_ends_the_job_with_one_line(
    make_batch: MakeBatch, tmp_path: Path
) -> None:
    manifest = make_batch([flight(0, "UA", 1.0)])
    result = submit(manifest, tmp_path / "table", "carrier,STRING")
    assert result.returncode == 78
    lines = [line for line in result.stdout.splitlines() if line.startswith("ConfigurationError: ")]
    assert len(lines) == 1
    assert lines[0].startswith("ConfigurationError: schema 'carrier,STRING': [PARSE_SYNTAX_ERROR] ")
    assert lines[0].endswith("expected fields, such as 'carrier STRING NOT NULL, delay DOUBLE'")
    assert Done.read(manifest.folder) is None
