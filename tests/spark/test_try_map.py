"""Expressions of the user's own, and columns of the message: what fails for a message turns that one away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sql

from airflow_provider_jmsjca import Batch, ConfigurationError, JmsMessage, Mapped
from tests.internals.spark import sort_tried, split
from tests.internals.spool import Done, take_fence
from tests.spark.conftest import MakeBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        fault = 'the value is no INT, found the string "x"'
        assert rejects == {
            1: f"column 'n': {fault}; column 'it's': {fault}",
            2: "column 'it's': divide failed, found the values 120.0, 0.0",
        }
        assert mapped.rows.columns == ["n", "it's", "region", "_jms"]
        assert batch.reject(mapped.rejects) == 3
    done = Done.read(manifest.folder)
    assert done is not None
    assert done.rejected == 3


def test_an_expression_that_fails_the_second_time_only_makes_a_reject(
    spark: SparkSession, make_batch: MakeBatch
) -> None:
    """A small batch finds reasons only for expressions that failed for a message when first tried."""
    manifest = make_batch([JmsMessage.text("12"), JmsMessage.text("x")])
    messages = Batch(manifest, take_fence(manifest.folder)).messages(spark)
    columns = dict.fromkeys("ab", "CAST(CAST(body AS STRING) AS INT)")
    rows, rejects = found(split(sort_tried(messages, columns, failed=[1])), "a", "b")
    assert rows == {0: (12, 12)}
    assert rejects == {
        1: "column 'a': failed when it was evaluated again; it may depend on more than the message; "
        "column 'b': the value is no INT, found the string \"x\""
    }


def test_the_reason_is_the_part_that_fails(spark: SparkSession, make_batch: MakeBatch) -> None:
    text = "CAST(body AS STRING)"
    failing = f"CAST({text} AS INT)"
    misfit = f'the value is no INT, found the string "x y, {"z" * 35}…"'
    reasons = {
        f"CASE WHEN position < 9 THEN {failing} + 1 ELSE 5 END": misfit,
        f"CASE WHEN position < 9 THEN {failing} ELSE CAST('a' AS INT) END": "casewhen failed, found",
        f"if(position > 9, {failing}, 3) + {failing}": misfit,
        f"element_at(split({text}, ','), 3)": f"element_at failed, found the values [x y,  {'z' * 33}…, 3",
        f"transform(array(1), each -> {failing})": "transform failed, found the values [1]",
        "raise_error('no')": "raise_error failed, found the values USER_RAISED_EXCEPTION, {",
        f"coalesce({failing}, 1)": misfit,
    }
    manifest = make_batch([JmsMessage.text(f"x\ty, {'z' * 50}")])
    batch = Batch(manifest, take_fence(manifest.folder))
    columns = {f"c{number}": expression for number, expression in enumerate(reasons)}
    _, rejects = found(batch.try_map(batch.messages(spark), columns))
    parts = rejects[0].split("; ")
    for number, (part, reason) in enumerate(zip(parts, reasons.values(), strict=True)):
        assert part.startswith(f"column 'c{number}': {reason}")


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
        1: "column 'n': the value is no INT, found the string \"x\"",
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
    with pytest.raises(ConfigurationError, match="a: two columns have this name, apart from upper and lower"):
        batch.try_map(batch.messages(spark), {"a": "1", "A": "2"})
