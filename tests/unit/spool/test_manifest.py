from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spool.manifest import Manifest, path_to_uri, uri_to_path


def edit(manifest: Manifest, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(manifest.path.read_text())
    change(document)
    manifest.path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda d: d.update(format_version=2), "format_version: expected 1, found 2"),
        (lambda d: d.update(schema_version=9), "schema_version: expected 1, found 9"),
        (lambda d: d.pop("rows"), "rows: expected int, found nothing"),
        (lambda d: d.update(rows=6), "rows: expected 5, the sum of the segments, found 6"),
        (lambda d: d.update(rows=True), "rows: expected int, found True"),
        (lambda d: d.update(extra=1), "extra: unknown field"),
        (lambda d: d.update(segments=[1]), r"segments\[0\]: expected a JSON object, found int"),
        (lambda d: d["segments"][1].pop("sha256"), r"segments\[1\]\.sha256: expected str, found nothing"),
        (
            lambda d: d["segments"][0].update(file="../x"),
            r"segments\[0\]\.file: expected a name such as segment-000000\.parquet",
        ),
        (
            lambda d: d["segments"][0].update(file=".."),
            r"segments\[0\]\.file: expected a name such as segment-000000\.parquet",
        ),
    ],
)
def test_a_manifest_of_another_form_is_refused(
    finished: Manifest, change: Callable[[dict[str, Any]], object], fault: str
) -> None:
    edit(finished, change)
    with pytest.raises(SpoolError, match=fault) as caught:
        Manifest.read(finished.path)
    assert str(finished.path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_faults_of_a_manifest_are_told_at_once(finished: Manifest) -> None:
    edit(finished, lambda d: d.update(rows="5", source=None))
    with pytest.raises(SpoolError, match="source: expected str, found None; rows: expected int, found '5'"):
        Manifest.read(finished.path)


@pytest.mark.parametrize(
    ("content", "fault"), [("{", "not JSON"), ("[]", "expected a JSON object, found list")]
)
def test_other_files_are_refused(tmp_path: Path, content: str, fault: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(content)
    with pytest.raises(SpoolError, match=fault):
        Manifest.read(path)


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpoolError, match=r"none\.json: the manifest can't be read: No such file"):
        Manifest.read(f"file://{tmp_path}/none.json")


def test_a_missing_segment_is_an_error(finished: Manifest) -> None:
    finished.segment_paths()[1].unlink()
    with pytest.raises(SpoolError, match=r"segment-000001\.parquet: can't be read: No such file"):
        finished.verify()


def test_a_short_segment_is_an_error(finished: Manifest) -> None:
    path = finished.segment_paths()[0]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        SpoolError, match=rf"segment-000000\.parquet: expected {size} bytes, found {size - 1}"
    ):
        finished.verify()


def test_a_changed_byte_is_an_error(finished: Manifest) -> None:
    path = finished.segment_paths()[0]
    content = bytearray(path.read_bytes())
    expected = hashlib.sha256(content).hexdigest()
    content[100] ^= 1
    found = hashlib.sha256(content).hexdigest()
    path.write_bytes(content)
    with pytest.raises(
        SpoolError, match=rf"segment-000000\.parquet: expected sha256 {expected}, found {found}"
    ):
        finished.verify()


def test_every_damaged_segment_is_named(finished: Manifest) -> None:
    for path in finished.segment_paths():
        path.write_bytes(b"")
    with pytest.raises(SpoolError, match=r"segment-000000.*; .*segment-000001"):
        finished.verify()


def _replace(manifest: Manifest, path: Path, rows: int) -> None:
    """Let the manifest vouch for whatever is in the file now."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    edit(manifest, lambda d: d["segments"][0].update(bytes=len(content), sha256=digest, rows=rows))
    edit(manifest, lambda d: d.update(rows=sum(item["rows"] for item in d["segments"])))


def test_a_segment_with_other_columns_is_an_error(finished: Manifest) -> None:
    path = finished.segment_paths()[0]
    table = pq.ParquetFile(path).read()
    pq.write_table(table.rename_columns(["id", *table.column_names[1:]]), path)
    _replace(finished, path, 3)
    with pytest.raises(
        SpoolError,
        match=r"message schema version 1, found column 1 is id string instead of message_id string",
    ):
        Manifest.read(finished.path).verify()
    pq.write_table(table.append_column("more", pa.array([1, 2, 3])), path)
    _replace(finished, path, 3)
    with pytest.raises(SpoolError, match="found 23 columns instead of 22"):
        Manifest.read(finished.path).verify()


def test_a_segment_with_another_number_of_rows_is_an_error(finished: Manifest) -> None:
    path = finished.segment_paths()[0]
    _replace(finished, path, 4)
    with pytest.raises(SpoolError, match=r"segment-000000\.parquet: expected 4 rows, found 3"):
        Manifest.read(finished.path).verify()


def test_a_file_that_is_no_parquet_is_an_error(finished: Manifest) -> None:
    path = finished.segment_paths()[0]
    path.write_bytes(b"hello, this is not Parquet at all")
    _replace(finished, path, 3)
    with pytest.raises(SpoolError, match=r"segment-000000\.parquet: not a Parquet file"):
        Manifest.read(finished.path).verify()


def test_uris_of_paths() -> None:
    path = Path("/data/a b/~3A#x%")
    assert path_to_uri(path) == "file:///data/a%20b/~3A%23x%25"
    assert uri_to_path("file:///data/a%20b/~3A%23x%25") == path
    assert uri_to_path("file://localhost/data") == Path("/data")
    assert uri_to_path("/data/x%20") == Path("/data/x%20")


@pytest.mark.parametrize(
    "location",
    ["ftp://b/m", "webhdfs:///m", "relative/m", "file://host/m", "", "file:m", "file:///a#m", "file:///a?m"],
)
def test_other_locations_are_refused(location: str) -> None:
    with pytest.raises(SpoolError, match=r"expected a file:///\.\.\. URI or an absolute path"):
        uri_to_path(location)


@pytest.mark.parametrize("location", ["hdfs:///m", "s3:///m"])
def test_a_store_without_a_name_is_refused(location: str) -> None:
    with pytest.raises(SpoolError, match=r"expected s3 or .* or hdfs, then ://bucket/path"):
        uri_to_path(location)
