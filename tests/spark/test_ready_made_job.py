"""The flags of the ready-made job, through its `main`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_jmsjca import ConfigurationError, JmsMessage, Manifest, Preview
from tests.internals.spark import main
from tests.internals.spool import Done, take_fence
from tests.spark.conftest import MakeBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RunJob = Callable[..., Done]


@pytest.fixture
def run_job(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> RunJob:
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # other tests go on with it

    def run(manifest: Manifest, *arguments: str) -> Done:
        fence = str(take_fence(manifest.folder))
        main(["--manifest", manifest.uri, "--batch-id", manifest.batch_id, "--fence", fence, *arguments])
        done = Done.read(manifest.folder)
        assert done is not None
        return done

    return run


def test_a_schema_of_another_language(
    spark: SparkSession, run_job: RunJob, make_batch: MakeBatch, tmp_path: Path
) -> None:
    bodies = [{"id": 1, "size": 5}, {"id": 2}, {"id": "x"}]
    manifest = make_batch([JmsMessage.text(json.dumps(body)) for body in bodies])
    fields = [{"name": "id", "type": "long"}, {"name": "size", "type": "int", "default": 7}]
    order = {"type": "record", "name": "Order", "fields": fields}
    schema, table = tmp_path / "schema.avsc", str(tmp_path / "table")
    schema.write_text(json.dumps([order, order | {"name": "Other"}]))

    arguments = ("--schema-file", str(schema), "--schema-type", "Order", "--schema-allow", "defaults")
    done = run_job(manifest, "--table", table, *arguments)

    assert (done.stored, done.rejected) == ({table: 2}, 1)
    found = spark.read.parquet(table).select("id", "size").sort("id")
    assert [tuple(row) for row in found.collect()] == [(1, 5), (2, None)]
    with pytest.raises(SystemExit, match="78"):
        run_job(make_batch(batch_id="b"), "--table", table, "--schema", "a INT", "--schema-type", "x")


@pytest.mark.usefixtures("run_job")
def test_a_preview_writes_nothing(
    make_batch: MakeBatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = ['{"id": 1, "name": "\x9b"}', '{"id": -1}', '{"id": "\x1b"}', '{"id": 4}']
    messages = [JmsMessage.text(body) for body in bodies]
    manifest = make_batch(messages)
    before = sorted(manifest.folder.iterdir())
    file = tmp_path / "messages"
    file.write_text("".join(f"{json.dumps(message.to_json())}\n" for message in messages))
    asked = ("--schema", "id INT, name STRING", "--expect", "positive: id > 0")

    for source in (("--manifest", manifest.uri), ("--preview-file", str(file))):
        main(["--preview", "3", *source, *asked])
        row, negative, misfit, summary = capsys.readouterr().out.splitlines()
        assert json.loads(row) | {"_jms": None} == {"id": 1, "name": "\x9b", "_jms": None}
        assert "\\u009b" in row
        assert negative.startswith("rejected: segment 0 position 1: expectation 'positive' is violated")
        assert misfit.startswith("rejected: segment 0 position 2: ")
        assert summary == "preview: 1 rows, 2 rejected messages, nothing written"
    assert sorted(manifest.folder.iterdir()) == before
    for wrong in ((), ("--manifest", manifest.uri, "--preview-file", str(file))):
        with pytest.raises(SystemExit, match="78"):
            main(["--preview", *wrong, *asked])


def test_fields_without_a_name_in_the_schema_are_kept_and_counted(
    spark: SparkSession, run_job: RunJob, make_batch: MakeBatch, tmp_path: Path
) -> None:
    bodies = [
        '{"id": 1, "s": {"x": 1}, "a": [{"y": 1}], "m": {"k": {"y": 1}}}',
        '{"id": 2, "note": [1.50], "s": {"x": 1, "z": {"q": null}}, "S": 1}',
        '{"id": 3, "s": null, "a": [{"y": 1}, null, {"y": 2, "it\'s": "b"}], "m": {"k": {"n": true}}}',
        '{"id": 4}',
        '{"id": "x", "note": 1}',
    ]
    schema = "id INT, s STRUCT<x: INT>, a ARRAY<STRUCT<y: INT>>, m MAP<STRING, STRUCT<y: INT>>"
    manifest = make_batch([JmsMessage.text(body) for body in bodies])
    table = str(tmp_path / "table")
    done = run_job(manifest, "--table", table, "--schema", schema, "--rescue", "_rescued STRING")

    assert (done.stored, done.rejected, done.rescued) == ({table: 4}, 1, 2)
    found = spark.read.parquet(table).select("id", "_rescued").sort("id").collect()
    assert [(number, text and json.loads(text)) for number, text in found] == [
        (1, None),
        (2, {"note": [1.5], "s": {"z": {"q": None}}, "S": 1}),
        (3, {"a": {"2": {"it's": "b"}}, "m": {"k": {"n": True}}}),
        (4, None),
    ]
    with Preview(messages=[JmsMessage.text(body) for body in bodies]) as preview:
        read = partial(preview.json, preview.messages(spark), schema)
        rescued = read(rescue="_rescued").rows.selectExpr("variant_get(_rescued, '$.s.z')").collect()
        assert [str(row[0]) for row in rescued] == ["None", '{"q":null}', "None", "None"]
        for rescue, fault in (
            ("id", "there is a column 'id' already"),
            ("_jms_rest", "'_jms_rest' is reserved"),
            ("rest INT", "expected a name such as _rescued, and STRING for JSON text"),
        ):
            with pytest.raises(ConfigurationError, match=fault):
                read(rescue=rescue)
    more = ("--table", table, "--schema", "id INT", "--rescue", "r", "--body", "csv")
    with pytest.raises(SystemExit, match="78"):
        run_job(make_batch(batch_id="csv"), *more)
