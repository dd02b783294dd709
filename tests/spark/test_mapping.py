from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.attempts import take_fence
from airflow_provider_jmsjca.spark.job import Batch
from airflow_provider_jmsjca.spark.mapping import map_json
from tests.spark.conftest import MakeBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "a INT NOT NULL, b STRING, t TIMESTAMP, `it's` STRING, s STRUCT<x: INT>"
GOOD = [
    (JmsMessage.text('{"a":1,"b":"x","more":[1]}'), (1, "x")),
    (JmsMessage.text(' {"a":2}\n'), (2, None)),
    (JmsMessage.text('{"a":3,"b":null,"t":"2020-01-01T00:00:00Z"}'), (3, None)),
    (JmsMessage.text('{"a":4,"it\'s":"y"}'), (4, None)),
    (JmsMessage.bytes('{"a":5,"b":"ü"}'.encode()), (5, "ü")),
    (JmsMessage.map({"a": 6, "b": "map"}), (6, "map")),
]
NOT_ONE = "the body is not JSON, not just one value, or has a name twice"
NO_OBJECT = "expected a JSON object, found another value"
BAD = [
    (JmsMessage.text("not json"), NOT_ONE),
    (JmsMessage.text(""), NOT_ONE),
    (JmsMessage.text('{"a":1,"b":'), NOT_ONE),
    (JmsMessage.text('{"a":1} xyz'), NOT_ONE),
    (JmsMessage.text('{"a":1}\n{"a":2}'), NOT_ONE),
    (JmsMessage.text('{"a":1},{"a":2}'), NOT_ONE),
    (JmsMessage.text('{"a":1,"a":2}'), NOT_ONE),
    (JmsMessage.bytes(b'{"a":1,"b":"\xff'), NOT_ONE),
    (JmsMessage.text('[{"a":1}]'), NO_OBJECT),
    (JmsMessage.text("5"), NO_OBJECT),
    (JmsMessage.text("null"), NO_OBJECT),
    (JmsMessage.text('{"b":"y"}'), "required but missing: 'a'"),
    (JmsMessage.text('{"a":null}'), "required but missing: 'a'"),
    (JmsMessage.text('{"A":1}'), "required but missing: 'a'"),
    (JmsMessage.text('{"a":"q"}'), "field 'a': the value is no INT"),
    (JmsMessage.text('{"a":1.5}'), "field 'a': the value is no INT"),
    (JmsMessage.text('{"a":99999999999}'), "field 'a': the value is no INT"),
    (JmsMessage.text('{"a":true}'), "field 'a': the value is no INT"),
    (JmsMessage.text('{"a":1,"t":"hello"}'), "field 't': the value is no TIMESTAMP"),
    (
        JmsMessage.text('{"a":1,"s":{"x":"q"}}'),
        "the body doesn't fit struct<a:int,b:string,t:timestamp,it's:string,s:struct<x:int>>",
    ),
    (JmsMessage.stream([1]), "expected a JSON body, found kind stream"),
    (JmsMessage.object(b'{"a":1}'), "expected a JSON body, found kind object"),
    (JmsMessage.empty(), "expected a JSON body, found kind empty"),
    (
        JmsMessage.text('{"a":1}', correlation_id=None, timestamp=10**15),
        (
            "the message can't be decoded: ValueError: 1000000000000000 ms since the epoch is not within the "
            "years 1 to 9999"
        ),
    ),
]


def test_every_message_is_either_mapped_or_rejected_with_the_reason(
    spark: SparkSession, make_batch: MakeBatch
) -> None:
    manifest = make_batch([message for message, _ in GOOD], [message for message, _ in BAD])
    batch = Batch(manifest, take_fence(manifest.folder))
    mapped = batch.json(batch.messages(spark), SCHEMA)

    good = {(row.segment, row.position): (row.a, row.b) for row in mapped.rows.collect()}
    assert good == {(0, index): expected for index, (_, expected) in enumerate(GOOD)}
    assert mapped.rows.columns == ["a", "b", "t", "it's", "s", "batch_id", "segment", "position"]

    rejects = {(row.segment, row.position): row for row in mapped.rejects.collect()}
    assert {place: row.exception_message for place, row in rejects.items()} == {
        (1, index): reason for index, (_, reason) in enumerate(BAD)
    }
    assert {row.exception_class for row in rejects.values()} == {
        "airflow_provider_jmsjca.errors.PoisonMessageError"
    }


def test_messages_have_the_columns_of_the_schema(spark: SparkSession, make_batch: MakeBatch) -> None:
    message = JmsMessage.text("x", {"region": "eu", "n": 5}, message_id="ID:1", timestamp=1_600_000_000_001)
    manifest = make_batch([message])
    (row,) = Batch(manifest, take_fence(manifest.folder)).messages(spark).collect()
    assert bytes(row.body) == b"x"
    assert row.properties == {"region": "eu", "n": "5"}
    assert row.property_types == {"n": "int"}
    assert (row.batch_id, row.segment, row.position) == ("d~~r~~t~~-1", 0, 0)


def test_an_empty_batch_has_the_same_columns(spark: SparkSession, make_batch: MakeBatch) -> None:
    full, empty = make_batch([JmsMessage.text("x")]), make_batch(batch_id="empty")
    frames = [Batch(item, take_fence(item.folder)).messages(spark) for item in (full, empty)]
    assert frames[0].schema == frames[1].schema
    assert frames[1].count() == 0


@pytest.mark.parametrize("schema", ["INT"])
def test_a_schema_without_fields_is_refused(spark: SparkSession, make_batch: MakeBatch, schema: str) -> None:
    manifest = make_batch([JmsMessage.text("x")])
    batch = Batch(manifest, take_fence(manifest.folder))
    with pytest.raises(ConfigurationError, match="expected fields, such as"):
        map_json(batch.messages(spark), schema)
