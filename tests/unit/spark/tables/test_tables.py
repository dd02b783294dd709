"""Arguments of a write that a format doesn't support."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.tables import TableSink, TableWrite, check_write
from airflow_provider_jmsjca.spark.tables.delta import DeltaSink
from airflow_provider_jmsjca.spark.tables.jdbc import JdbcSink
from airflow_provider_jmsjca.spark.tables.parquet import ParquetSink

SINKS: dict[str, TableSink] = {"parquet": ParquetSink(), "delta": DeltaSink(), "jdbc": JdbcSink()}


@pytest.mark.parametrize(
    ("name", "arguments", "fault"),
    [
        ("parquet", {"mode": "upsert", "keys": ("id",)}, "mode 'upsert': format parquet supports append"),
        ("jdbc", {"mode": "overwrite"}, "mode 'overwrite': format jdbc supports append, upsert"),
        ("jdbc", {"partition_by": ("day",)}, "partition_by: not supported by format jdbc"),
        ("parquet", {"cluster_by": ("day",)}, "cluster_by: not supported by format parquet"),
        ("jdbc", {"properties": {"a": "b"}}, "properties: not supported by format jdbc"),
        ("delta", {"options": {"TxnVersion": "1"}}, "options: TxnVersion is set by write itself"),
        ("jdbc", {"options": {"dbtable": "x"}}, "options: dbtable is set by write itself"),
        ("delta", {"mode": "upsert"}, "expected keys, the columns that identify a row"),
        ("delta", {"order_by": "at"}, "order_by and delete_when belong to mode 'upsert', not to 'append'"),
    ],
)
def test_an_argument_that_a_format_does_not_support_is_refused(
    name: str, arguments: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_write(name, SINKS[name], TableWrite(table="orders", **arguments))
    assert fault in str(refused.value)


def test_what_a_format_supports_is_accepted() -> None:
    check_write("delta", SINKS["delta"], TableWrite(table="t", mode="upsert", keys=("id",), delete_when="x"))
    check_write(
        "delta", SINKS["delta"], TableWrite(table="t", cluster_by=("a",), options={"compression": "zstd"})
    )
    check_write("parquet", SINKS["parquet"], TableWrite(table="t", replaces=True, partition_by=("day",)))
