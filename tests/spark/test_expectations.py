"""Expectations: rows that violate a condition are rejected, dropped, or fail the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_jmsjca import Batch, ConfigurationError, JmsMessage, rejected_messages
from tests.internals.spark import reject_reasons
from tests.internals.spool import Done, take_fence
from tests.spark.conftest import MakeBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POSITIVE = {"positive": "amount > 0", "known": "currency IN ('EUR', 'USD')"}


def test_rows_that_violate_an_expectation_are_counted_and_rejected_or_dropped(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    amounts = [(1, "EUR"), (-1, "EUR"), (None, "USD"), (2, "XXX"), (-2, "XXX")]
    bodies = [json.dumps({"amount": amount, "currency": currency}) for amount, currency in amounts]
    manifest = make_batch([JmsMessage.text(body) for body in bodies])
    with Batch(manifest, take_fence(manifest.folder)) as batch:
        mapped = batch.json(batch.messages(spark), "amount INT, currency STRING")
        rows = batch.expect(mapped.rows, POSITIVE)
        assert batch.expect(rows, {"small": "amount < 1"}, "drop").count() == 0
        with pytest.raises(ConfigurationError, match="1 rows violate 'small': amount < 1"):
            batch.expect(rows, {"small": "amount < 1"}, "fail")
        with pytest.raises(ConfigurationError, match=r"a condition can't be evaluated: .*amuont"):
            batch.expect(rows, {"x": "amuont > 1"})
        with pytest.raises(ConfigurationError, match="action 'ignore': expected one of reject, drop, fail"):
            batch.expect(rows, {"x": "amount > 1"}, "ignore")
        assert batch.write(rows, str(tmp_path / "table")) == 1
    done = Done.read(manifest.folder)
    assert done is not None
    assert (done.violations, done.rejected) == ({"positive": 3, "known": 2, "small": 1}, 4)
    first, *_, last = rejected_messages(manifest)
    assert first.message.body == bodies[1]
    assert first.exception_message == (
        'expectation \'positive\' is violated: amount > 0, found the values {"amount":-1,"currency":"EUR"}'
    )
    assert last.exception_message.startswith("expectation 'positive'")
    assert reject_reasons(manifest) == {
        "expectation 'positive' is violated: amount > 0, found the values …": 3,
        "expectation 'known' is violated: currency IN ('EUR', 'USD'), found the values …": 1,
    }
