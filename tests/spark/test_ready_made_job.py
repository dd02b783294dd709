"""The flags of the ready-made job, through its `main`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_jmsjca import JmsMessage, Manifest
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
