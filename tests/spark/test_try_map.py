"""Expressions of the user's own, and columns of the message: what fails for a message turns that one away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sql

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.job import Batch
from airflow_provider_jmsjca.spark.mapping import Mapped
from airflow_provider_jmsjca.spool.attempts import Done, take_fence
from tests.spark.conftest import MakeBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

XML = "from_xml(CAST(body AS STRING), 'id INT, amount DECIMAL(9,2)', map('mode', 'FAILFAST'))"
CSV = "from_csv(CAST(body AS STRING), 'id INT, amount DECIMAL(9,2)', map('mode', 'FAILFAST'))"
UNDECODABLE = "the message can't be decoded: ValueError: 1000000000000000 ms since the epoch is not within"


def found(mapped: Mapped, *columns: str) -> tuple[dict[int, tuple[object, ...]], dict[int, str]]:
    rows = {
        row.position: tuple(row)[1:] for row in mapped.rows.selectExpr("_jms.position", *columns).collect()
    }
    return rows, {row._jms.position: row.exception_message for row in mapped.rejects.collect()}


def test_a_message_for_which_an_expression_fails_is_turned_away(
    spark: SparkSession, make_batch: MakeBatch
) -> None:
    messages = [
        JmsMessage.text("12", {"region": "eu"}, message_id="ID:0"),
        JmsMessage.text("x"),
        JmsMessage.text("0"),
        JmsMessage.empty(),
        JmsMessage.text("1", timestamp=10**15),
    ]
    manifest = make_batch(messages)
    with Batch(manifest, take_fence(manifest.folder)) as batch:
        # Both use the same cast: it fails within each of them, and not before.
        mapped = batch.try_map(
            batch.messages(spark),
            {
                "n": "CAST(CAST(body AS STRING) AS INT)",
                "it's": sql.lit(120) / sql.expr("CAST(CAST(body AS STRING) AS INT)"),
                "region": "properties['region']",
            },
        )
        rows, rejects = found(mapped, "n", "`it's`", "region")
        assert rows == {0: (12, 10.0, "eu"), 3: (None, None, None)}
        assert rejects.pop(4).startswith(UNDECODABLE)
        first = "column 'n': the expression failed: CAST(CAST(body AS STRING) AS INT)"
        second = "column 'it's': the expression failed"
        assert rejects == {1: f"{first}; {second}", 2: second}
        assert mapped.rows.columns == ["n", "it's", "region", "_jms"]
        assert batch.reject(mapped.rejects) == 3
    done = Done.read(manifest.folder)
    assert done is not None
    assert done.rejected == 3


@pytest.mark.parametrize(
    ("expression", "bodies", "expected", "bad"),
    [
        (XML, ["<o><id>1</id><amount>1.50</amount></o>", "<o><id>x</id></o>", "<o>"], "(1, 1.50)", {1, 2}),
        (CSV, ["1,1.50", "x,1"], "(1, 1.50)", {1}),
    ],
)
def test_xml_and_csv(
    spark: SparkSession,
    make_batch: MakeBatch,
    *,
    expression: str,
    bodies: list[str],
    expected: str,
    bad: set[int],
) -> None:
    manifest = make_batch([JmsMessage.text(body) for body in bodies])
    batch = Batch(manifest, take_fence(manifest.folder))
    rows, rejects = found(batch.try_map(batch.messages(spark), {"o": expression}), "o.id", "o.amount")
    assert {number: f"({row[0]}, {row[1]})" for number, row in rows.items()} == {0: expected}
    assert rejects == dict.fromkeys(bad, f"column 'o': the expression failed: {expression}")


def test_columns_of_the_message_stand_beside_its_fields(spark: SparkSession, make_batch: MakeBatch) -> None:
    messages = [
        JmsMessage.text('{"a":1}', {"n": 5}, message_id="ID:0", timestamp=1_600_000_000_000),
        JmsMessage.text('{"a":2}', {"n": "x"}),
        JmsMessage.text('{"a":"y"}', {"n": "x"}),
    ]
    manifest = make_batch(messages)
    batch = Batch(manifest, take_fence(manifest.folder))
    keep = ["message_id", "timestamp AS sent", "CAST(properties['n'] AS INT) AS n"]
    mapped = batch.json(batch.messages(spark), "a INT", keep=keep)
    assert mapped.rows.columns == ["a", "message_id", "sent", "n", "_jms"]
    rows, rejects = found(mapped, "a", "message_id", "CAST(sent AS LONG)", "n")
    assert rows == {0: (1, "ID:0", 1_600_000_000, 5)}
    assert rejects == {
        1: "column 'n': the expression failed: CAST(properties['n'] AS INT) AS n",
        2: "field 'a': the value is no INT, found the string \"y\"",
    }


@pytest.mark.parametrize(
    ("keep", "fault"),
    [
        (["nothing"], "keep: 'nothing': "),
        (["type AS A"], "there is a column 'A' already; give it another name: type AS message_A"),
    ],
)
def test_what_can_not_be_kept_is_refused(
    spark: SparkSession, make_batch: MakeBatch, keep: list[str], fault: str
) -> None:
    manifest = make_batch([JmsMessage.text("{}")])
    batch = Batch(manifest, take_fence(manifest.folder))
    with pytest.raises(ConfigurationError, match=fault):
        batch.json(batch.messages(spark), "a INT", keep=keep)


def test_without_places_or_columns_nothing_is_tried(spark: SparkSession, make_batch: MakeBatch) -> None:
    manifest = make_batch([JmsMessage.text("{}")])
    batch = Batch(manifest, take_fence(manifest.folder))
    with pytest.raises(ConfigurationError, match="the messages have no segment, position; expected messages"):
        batch.try_map(batch.messages(spark).drop("segment", "position"), {"a": "1"})
    with pytest.raises(ConfigurationError, match="there are no columns; expected messages and expressions"):
        batch.try_map(batch.messages(spark), {})
    with pytest.raises(ConfigurationError, match="a: two columns have this name, but for upper and lower"):
        batch.try_map(batch.messages(spark), {"a": "1", "A": "2"})
