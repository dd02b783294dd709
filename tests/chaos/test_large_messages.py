"""Messages of 5 MiB through the ready-made job.

`JMSJCA_CHAOS=full` also reads them as JSON; otherwise they are stored as they are.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from airflow_provider_jmsjca import JmsMessage
from tests.internals.spool import Done, Row, SpoolBatch
from tests.servers import short_lived
from tests.spark.test_submit import submit

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
SCHEMA = "id BIGINT NOT NULL, text STRING"


@pytest.mark.parametrize("schema", [None, SCHEMA] if FULL else [None])
def test_large_messages_need_no_more_than_the_memory_spark_has_by_default(
    tmp_path: Path, schema: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 messages of 5 MiB, as the collecting task writes them; one in ten doesn't fit."""
    for name in short_lived.NAMES:  # the collector of garbage is Spark's own choice too
        monkeypatch.delenv(name)
    messages = [
        JmsMessage.text(json.dumps({"id": "bad" if number % 10 == 0 else number, "text": large(number)}))
        for number in range(50)
    ]
    with SpoolBatch(tmp_path / "spool", "b1", source="queue://large", activation="a") as batch:
        for message in messages:
            batch.add([Row(message, 1_700_000_000_000_000)])
        batch.seal()
        manifest = batch.complete()
    result = submit(manifest, tmp_path / "table", schema)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    done = Done.read(manifest.folder)
    assert done is not None
    assert (done.stored, done.rejected) == (
        {str(tmp_path / "table"): 50 if schema is None else 45}, 0 if schema is None else 5
    )  # fmt: skip
    rows = ds.dataset(tmp_path / "table", format="parquet").to_table()
    if schema is None:
        assert rows["body"].to_pylist() == [str(message.body).encode() for message in messages]
    else:
        found = dict(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True))
        assert found == {number: large(number) for number in range(50) if number % 10}


def large(number: int) -> str:
    """5 MiB that don't compress well."""
    return random.Random(number).randbytes(5 * 2**20 // 2).hex()  # noqa: S311 - data to store
