from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_jmsjca import Batch, ConfigurationError, JmsMessage, map_json, rejected_messages
from tests.internals.spool import MESSAGE_DDL, take_fence
from tests.spark.conftest import MakeBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession, types

SCHEMA = "a INT NOT NULL, b STRING, t TIMESTAMP, `it's` STRING, s STRUCT<x: INT>"
GOOD = [
    (JmsMessage.text('{"a":1,"b":"x","more":[1]}'), (1, "x")),
    (JmsMessage.text(' {"a":2}\n'), (2, None)),
    (JmsMessage.text('{"a":3,"b":null,"t":"2020-01-01T00:00:00Z"}'), (3, None)),
    (JmsMessage.text('{"a":4,"it\'s":"y"}'), (4, None)),
    (JmsMessage.bytes('{"a":5,"b":"ü"}'.encode()), (5, "ü")),
    (JmsMessage.map({"a": 6, "b": "map"}), (6, "map")),
]
EMPTY = "the body is empty"
MORE = "the body has more than one JSON value"
BAD = [
    (JmsMessage.text("not json"), 'the body is not JSON, it begins with "not json"'),
    (
        JmsMessage.text(f"<order>\n{'x' * 100}</order>"),
        f'the body is not JSON, it begins with "<order> {"x" * 32}…"',
    ),
    (JmsMessage.text(""), EMPTY),
    (JmsMessage.text(" \n"), EMPTY),
    (
        JmsMessage.text('{"a":1,"b":'),
        "the body is not JSON: it begins with { or [ and ends with neither } nor ], so it may be cut off",
    ),
    (JmsMessage.text('{"a":1} xyz'), MORE),
    (JmsMessage.text('{"a":1}\n{"a":2}'), MORE),
    (JmsMessage.text('{"a":1},{"a":2}'), MORE),
    (JmsMessage.text('{"a":1},"b":2'), MORE),
    (JmsMessage.text('{"a":1}]'), MORE),
    (JmsMessage.text('{"a":1}]{"a":2}'), MORE),
    (JmsMessage.text('{"a":1}] xyz'), MORE),
    (JmsMessage.text("[1]]"), MORE),
    (JmsMessage.text('{"a":{"b":1}'), 'the body is not JSON, it begins with "{"a":{"b":1}"'),
    (JmsMessage.text('{"a":1,"a":2}'), "the body has an object with a name twice"),
    (JmsMessage.bytes(b'{"a":1,"b":"\xff"}'), "expected a JSON body, found bytes that are not UTF-8"),
    (
        JmsMessage.text('{"a":1,"b":"\\ud800"}'),
        "the body has an escape such as \\ud800, which is half a character",
    ),
    (JmsMessage.text('[{"a":1}]'), "expected a JSON object, found an array"),
    (JmsMessage.text("5"), "expected a JSON object, found the number 5"),
    (JmsMessage.text("null"), "expected a JSON object, found null"),
    (JmsMessage.text('{"b":"y"}'), "required but missing: 'a'"),
    (JmsMessage.text('{"a":null}'), "required but missing: 'a'"),
    (JmsMessage.text('{"A":1}'), "required but missing: 'a'"),
    (JmsMessage.text('{"a":"q"}'), "field 'a': the value is no INT, found the string \"q\""),
    (JmsMessage.text('{"a":1.5}'), "field 'a': the value is no INT, found the number 1.5"),
    (JmsMessage.text('{"a":99999999999}'), "field 'a': the value is no INT, found the number 99999999999"),
    (JmsMessage.text('{"a":true}'), "field 'a': the value is no INT, found true"),
    (
        JmsMessage.text('{"a":1,"t":"hello"}'),
        "field 't': the value is no TIMESTAMP, found the string \"hello\"",
    ),
    (
        JmsMessage.text('{"a":1,"s":{"x":"q"}}'),
        "field 's.x': the value is no INT, found the string \"q\"",
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

    good = {(row._jms.segment, row._jms.position): (row.a, row.b) for row in mapped.rows.collect()}
    assert good == {(0, index): expected for index, (_, expected) in enumerate(GOOD)}
    assert mapped.rows.columns == ["a", "b", "t", "it's", "s", "_jms"]

    rejects = {(row._jms.segment, row._jms.position): row for row in mapped.rejects.collect()}
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
    assert (row.batch_id, row.segment, row.position) == tuple(row._jms) == ("d~~r~~t~~-1", 0, 0)


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


def test_fields_may_have_the_names_of_parts_of_the_origin(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    """And of columns of the message schema, in any letters: the body's values stay the body's."""
    bodies = [
        '{"id":9,"segment":7,"Position":1,"batch_id":"B"}',
        '{"id":-1,"segment":0,"Position":0,"batch_id":"C"}',
        '{"id":"x"}',
    ]
    manifest = make_batch([JmsMessage.text(body) for body in bodies])
    table = tmp_path / "table"
    with Batch(manifest, take_fence(manifest.folder)) as batch:
        schema = "id LONG, segment INT, Position INT, batch_id STRING"
        mapped = batch.json(batch.messages(spark), schema, keep=["priority", "position AS place"])
        negative = mapped.rows.where("id < 0")
        why = ["'Negative' AS exception_class", "'negative' AS exception_message"]
        assert batch.reject(negative.selectExpr("_jms", *why)) == 1
        assert batch.reject(mapped.rejects) == 2
        assert batch.write(mapped.rows.where("id >= 0"), str(table)) == 1
    assert [each.message.body for each in rejected_messages(manifest)] == bodies[1:]
    (row,) = spark.read.parquet(str(table)).collect()
    assert row.asDict() == {
        "id": 9, "segment": 7, "Position": 1, "batch_id": "B", "priority": 4, "place": 0,
        "jms_segment": 0, "jms_position": 0, "jms_batch_id": manifest.batch_id,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["_jms", "_JMS_unparsed", "Jms_Batch_Id", "jms_segment", "jms_position"])
def test_reserved_names_are_refused(spark: SparkSession, make_batch: MakeBatch, name: str) -> None:
    manifest = make_batch([JmsMessage.text("{}")])
    batch = Batch(manifest, take_fence(manifest.folder))
    messages = batch.messages(spark)
    fault = f"the name '{name}' is reserved"
    with pytest.raises(ConfigurationError, match=f"schema: {fault}"):
        map_json(messages, f"a INT, {name} STRING")
    with pytest.raises(ConfigurationError, match=f"keep: .* {fault}"):
        map_json(messages, "a INT", [f"priority AS {name}"])
    with pytest.raises(ConfigurationError, match=f"try_map: {fault}"):
        batch.try_map(messages, {name: "1"})
    if name != "_jms":
        with pytest.raises(ConfigurationError, match=f"column '{name}': the name is reserved"):
            batch.write(messages.withColumn(name, messages.priority), "/tmp/never")  # noqa: S108 - refused


# Every JSON value here against every type: what a type takes, and what becomes of it. It takes no other.
VALUES = (
    "null", "true", "false", "0", "-1", "1.0", "1.5", "1e2", "127", "128", "200", "-129", "32768",
    "2147483648", "9223372036854775807", "9223372036854775808", "0.1000000000000000000001", "123.45",
    "1234.5", "1e39", "1e400", "1577836800", "1577836800.5",
    '""', '"x"', '"1"', '"1,234.50"', '"1.5"', '"true"',
    '"NaN"', '"null"', '"{}"', '"-"', '"YQ=="', '"YQ"', '"2020-02-29"', '"2020-02-30"', '"2020"', '"2020-02"',
    '"20200229"', '"0000-01-01"', '"2020-02-29\\n"', '"2020-02-29T05:06:07"', '"2020-02-29T05:06:07Z"',
    '"2020-02-29T05:06:07.123456+02:00"', '"2020-02-29T05:06:07.1234567Z"', '"2020-02-29T25:00:00Z"',
    '"2020-02-29 05:06:07"', '"05:06:07"', '"now"', "[]", "[1]", '["1"]', "[null]", "[1.5]", "{}", '{"x":1}',
    '{"x":"1"}', '{"x":null}', '{"x":1.5}',
)  # fmt: skip
STRINGS = {text: text[1:-1].replace("\\n", "\n") for text in VALUES if text.startswith('"')}
NULL = {"null": None}
BYTES = NULL | {"0": "0", "-1": "-1", "127": "127"}
SHORTS = BYTES | {"128": "128", "200": "200", "-129": "-129"}
INTS = SHORTS | {"32768": "32768", "1577836800": "1577836800"}
LONGS = INTS | {"2147483648": "2147483648", "9223372036854775807": "9223372036854775807"}
FITTING: dict[str, dict[str, str | None]] = {
    "STRING": NULL | STRINGS,
    "BOOLEAN": NULL | {"true": "true", "false": "false"},
    "TINYINT": BYTES,
    "SMALLINT": SHORTS,
    "INT": INTS,
    "BIGINT": LONGS,
    "FLOAT": NULL | {
        "0": "0.0", "-1": "-1.0", "1.0": "1.0", "1.5": "1.5", "1e2": "100.0", "127": "127.0", "128": "128.0",
        "200": "200.0", "-129": "-129.0", "32768": "32768.0", "2147483648": "2.14748365E9",
        "9223372036854775807": "9.223372E18", "9223372036854775808": "9.223372E18",
        "0.1000000000000000000001": "0.1", "123.45": "123.45", "1234.5": "1234.5",
        "1577836800": "1.5778368E9", "1577836800.5": "1.5778368E9",
    },
    "DOUBLE": NULL | {
        "0": "0.0", "-1": "-1.0", "1.0": "1.0", "1.5": "1.5", "1e2": "100.0", "127": "127.0", "128": "128.0",
        "200": "200.0", "-129": "-129.0", "32768": "32768.0", "2147483648": "2.147483648E9",
        "9223372036854775807": "9.223372036854776E18", "9223372036854775808": "9.223372036854776E18",
        "0.1000000000000000000001": "0.1", "123.45": "123.45", "1234.5": "1234.5", "1e39": "1.0E39",
        "1577836800": "1.5778368E9", "1577836800.5": "1.5778368005E9",
    },
    "DECIMAL(5,2)": NULL | {
        "0": "0.00", "-1": "-1.00", "1.0": "1.00", "1.5": "1.50", "127": "127.00", "128": "128.00",
        "200": "200.00", "-129": "-129.00", "123.45": "123.45",
    },
    "DECIMAL(38,22)": NULL | {
        "0": "0.0000000000000000000000", "-1": "-1.0000000000000000000000", "1.0": "1.0000000000000000000000",
        "1.5": "1.5000000000000000000000", "127": "127.0000000000000000000000",
        "128": "128.0000000000000000000000", "200": "200.0000000000000000000000",
        "-129": "-129.0000000000000000000000", "32768": "32768.0000000000000000000000",
        "2147483648": "2147483648.0000000000000000000000",
        "0.1000000000000000000001": "0.1000000000000000000001", "123.45": "123.4500000000000000000000",
        "1234.5": "1234.5000000000000000000000", "1577836800": "1577836800.0000000000000000000000",
        "1577836800.5": "1577836800.5000000000000000000000",
    },
    "DATE": NULL | {'"2020-02-29"': "2020-02-29"},
    "TIMESTAMP": NULL | {
        '"2020-02-29T05:06:07"': "2020-02-29 05:06:07", '"2020-02-29T05:06:07Z"': "2020-02-29 05:06:07",
        '"2020-02-29T05:06:07.123456+02:00"': "2020-02-29 03:06:07.123456",
    },
    "TIMESTAMP_NTZ": NULL | {'"2020-02-29T05:06:07"': "2020-02-29 05:06:07"},
    "BINARY": NULL
    | {text: text[1:-1] for text in ('""', '"YQ=="', '"true"', '"null"', '"2020"', '"20200229"')},
    "ARRAY<INT>": NULL | {"[]": "[]", "[1]": "[1]", "[null]": "[null]"},
    "ARRAY<STRING>": NULL | {"[]": "[]", '["1"]': "[1]", "[null]": "[null]"},
    "STRUCT<x: INT NOT NULL>": NULL | {'{"x":1}': "{1}"},
    "STRUCT<x: STRING>": NULL | {"{}": "{null}", '{"x":"1"}': "{1}", '{"x":null}': "{null}"},
    "MAP<STRING, INT>": NULL | {"{}": "{}", '{"x":1}': "{x -> 1}", '{"x":null}': "{x -> null}"},
    "MAP<STRING, DECIMAL(2,1)>": NULL | {
        "{}": "{}", '{"x":1}': "{x -> 1.0}", '{"x":null}': "{x -> null}", '{"x":1.5}': "{x -> 1.5}"
    },
    # As JSON: a number with an exponent is a DOUBLE, any other BIGINT or DECIMAL.
    "VARIANT": {text: text for text in VALUES if text != "1e400"}
    | {"1.0": "1", "1e2": "100.0", "1e39": "1.0E39"},
    "ARRAY<VARIANT>": NULL
    | {text: text for text in ("[]", "[1]", '["1"]', "[null]", "[1.5]")},
}  # fmt: skip
# From Java 19 on this number is written with a digit less.
OLDER = {"2.1474836E9": "2.14748365E9"}
REFUSED = (
    "INTERVAL DAY", "INTERVAL YEAR", "INTERVAL", "TIME", "CHAR(3)", "VARCHAR(3)", "VOID", "GEOMETRY(4326)",
    "GEOGRAPHY(4326)", "STRING COLLATE UTF8_LCASE", "MAP<INT, STRING>", "ARRAY<STRUCT<x: VARCHAR(3)>>",
)  # fmt: skip


def test_every_json_value_as_every_type(spark: SparkSession, make_batch: MakeBatch) -> None:
    asked = [(kind, value) for kind in FITTING for value in VALUES]
    names = {kind: f"v{number}" for number, kind in enumerate(FITTING)}
    manifest = make_batch([JmsMessage.text(f'{{"{names[kind]}":{value}}}') for kind, value in asked])
    messages = Batch(manifest, take_fence(manifest.folder)).messages(spark)
    mapped = map_json(messages, ", ".join(f"{name} {kind}" for kind, name in names.items()))
    shows = {"BINARY": "base64({0})", "VARIANT": "to_json({0})", "ARRAY<VARIANT>": "to_json({0})"}
    shown = [
        f"{shows.get(kind, 'CAST({0} AS STRING)').format(name)} AS {name}" for kind, name in names.items()
    ]
    found: dict[str, dict[str, str | None]] = {kind: {} for kind in FITTING}
    for row in mapped.rows.selectExpr("_jms.position", *shown).collect():
        kind, value = asked[row.position]
        found[kind][value] = OLDER.get(row[names[kind]], row[names[kind]])
    assert {kind: values for kind, values in found.items() if values != FITTING[kind]} == {}
    rejects = {asked[row._jms.position]: row.exception_message for row in mapped.rejects.collect()}
    assert rejects.keys() == {(kind, value) for kind, value in asked if value not in FITTING[kind]}
    last = names["STRUCT<x: INT NOT NULL>"]
    numbers = (
        "0 -1 1.5 100.0 127 128 200 -129 32768 2147483648 9223372036854775807 9223372036854775808 "
        "0.1000000000000000000001 123.45 1234.5 1.0E39 1577836800 1577836800.5"
    )
    found_there = {
        "true",
        "false",
        "an array",
        "a number beyond DOUBLE",
        *(f"the number {number}" for number in numbers.split()),
        "the number 1 with a decimal point",
        *(f'the string "{text}"'.replace("\n", " ") for text in STRINGS.values()),
    }
    assert {why for (kind, _), why in rejects.items() if kind == "STRUCT<x: INT NOT NULL>"} == {
        *(f"field '{last}': the value is no STRUCT<x: INT NOT NULL>, found {what}" for what in found_there),
        f"field '{last}.x': the value is no INT, found the number 1.5",
        f"field '{last}.x': the value is no INT, found the string \"1\"",
        f"required but missing: '{last}.x'",
    }


def test_the_plan_of_the_reasons_has_a_test_for_each_type_and_none_for_each_field(
    spark: SparkSession, make_batch: MakeBatch
) -> None:
    manifest = make_batch([JmsMessage.text("{}")])
    messages = Batch(manifest, take_fence(manifest.folder)).messages(spark)

    def tests(count: int) -> int:
        inner = ", ".join(f"f{number}: INT NOT NULL" for number in range(count))
        fields = f"{inner.replace(':', '')}, s STRUCT<{inner}>"
        plan = map_json(messages, fields).rejects._jdf.queryExecution().analyzed().toString()
        return str(plan).count("schema_of_variant")

    assert tests(60) == tests(2) > 0


def test_what_spark_can_not_read_is_turned_away_with_the_limit(
    spark: SparkSession, make_batch: MakeBatch
) -> None:
    bodies = [
        f'{{"a":"{"x" * 20_000_001}"}}',
        f'{{"b":{"[" * 998}{"]" * 998}}}',
        f'{{"b":{"[" * 999}{"]" * 999}}}',
        f'{{"b":{"1" * 1001}}}',
    ]
    manifest = make_batch([JmsMessage.text(body) for body in bodies])
    messages = Batch(manifest, take_fence(manifest.folder)).messages(spark)
    rejects = {
        row._jms.position: row.exception_message for row in map_json(messages, "a STRING").rejects.collect()
    }
    assert rejects == {
        0: "the body has a string of more than 20,000,000 characters: Spark cannot read it",
        2: "the body has more than 999 levels of objects and arrays: Spark cannot read it",
        3: "the body has a number of more than 1,000 digits: Spark cannot read it",
    }


_FOREIGN = {
    '{"id":27,"f":NaN}': "NaN or Infinity as a number",
    '{"id":72,"f":-Infinity}': "NaN or Infinity as a number",
    '{"id":1,"id":NaN}': "NaN or Infinity as a number",
    "{'id':50}": "single quotes in place of double ones",
    "{id:50}": "a name without quotes",
    '{"id":1} // one': "a comment",
    '{"a":[1,/*,]*/2]}': "a comment",
    '{"id":[1,]}': "a comma behind the last item",
    '\ufeff{"id":1}': "a byte order mark",
    '{"id":01}': "a number that begins with 0",
    '{"s":"a\nb"}': "an unescaped control character in a string",
    '{"s":"a\\qb"}': "an escape that JSON doesn't define",
    "\ufeff{'id':NaN,}": "a byte order mark and a comma behind the last item and NaN or Infinity as a number "
    "and single quotes in place of double ones",
}


def test_what_other_writers_put_into_json_is_the_reason(spark: SparkSession, make_batch: MakeBatch) -> None:
    expected = {body: f"the body is not JSON: it has {what}" for body, what in _FOREIGN.items()} | {
        '{"id":1,"id":2,"s":"NaN, \'x\' // ,]"}': "the body has an object with a name twice",
        '{"f":NaN} {"f":1}': 'the body is not JSON, it begins with "{"f":NaN} {"f":1}"',
        '{"id":1} {"id":2}': "the body has more than one JSON value",
    }
    bodies = list(expected)
    manifest = make_batch([JmsMessage.text(body) for body in bodies])
    messages = Batch(manifest, take_fence(manifest.folder)).messages(spark)
    rejects = map_json(messages, "id INT, f DOUBLE, s STRING").rejects.collect()
    assert {bodies[row._jms.position]: row.exception_message for row in rejects} == expected


def test_a_time_that_the_session_time_zone_leaves_out_is_turned_away(
    spark: SparkSession, make_batch: MakeBatch
) -> None:
    """In Berlin the clock goes from 2:00 to 3:00 on 29 March, and from 3:00 back to 2:00 on 25 October."""
    times = {
        "2026-03-29T01:59:59": 1_774_745_999,
        "2026-03-29T02:30:00": None,
        "2026-03-29T03:00:00": 1_774_746_000,
        "2026-03-29T02:30:00Z": 1_774_751_400,
        "2026-03-29T02:30:00+01:00": 1_774_747_800,
        "2026-10-25T02:30:00": 1_792_888_200,
    }
    manifest = make_batch([JmsMessage.text(f'{{"t":"{text}"}}') for text in times])
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        mapped = map_json(Batch(manifest, take_fence(manifest.folder)).messages(spark), "t TIMESTAMP")
        rows = {
            row.position: row.t
            for row in mapped.rows.selectExpr("_jms.position", "unix_seconds(t) AS t").collect()
        }
        (reject,) = mapped.rejects.collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert rows == {place: moment for place, moment in enumerate(times.values()) if moment is not None}
    assert (
        reject.exception_message
        == "field 't': the value is no TIMESTAMP, found the string \"2026-03-29T02:30:00\""
    )


MILLENNIUM = "2026-01-01T00:00:00Z"
# By format: what it reads, as UTC. The session's time zone is Berlin's.
STAMPS = {
    "usual": {
        '"2026-01-01T00:00:00.1234567Z"': "2026-01-01 00:00:00.123456",  # .NET
        '"2026-01-01T00:00:00.000+0000"': "2026-01-01 00:00:00",  # Jackson
        '"2026-01-01T00:00Z"': "2026-01-01 00:00:00",  # Java
        '"2026-01-01T02:00:00.123456789+02:00[Europe/Kiev]"': "2026-01-01 00:00:00.123456",
        '"2026-01-01T02:00+02"': "2026-01-01 00:00:00",
        '"2026-01-01 02:00:00.5+02:00"': "2026-01-01 00:00:00.5",  # Python
        '"2026-01-01 02:00"': "2026-01-01 01:00:00",
    },
    "epoch_seconds": {"1767225600": "2026-01-01 00:00:00", '"-1"': "1969-12-31 23:59:59"},
    "epoch_millis": {"1767225600001": "2026-01-01 00:00:00.001", "0": "1970-01-01 00:00:00"},
    "epoch_micros": {"1767225600000001": "2026-01-01 00:00:00.000001"},
    "dd.MM.yyyy HH:mm": {'"01.01.2026 02:00"': "2026-01-01 01:00:00"},
    "MM/dd/yyyy hh:mm a XXX": {'"01/02/2026 03:00 PM +01:00"': "2026-01-02 14:00:00"},
}
NO_STAMPS = {
    "usual": [
        '"2026-03-29T02:30"', '"2026-02-30 00:00"', '"2026-01-01"', '"2026-01-01T24:00"', "1767225600",
        '"2026-01-01T00:00:00.1234567890Z"', '"2026-01-01T00:00[Europe/Kiev]"', '"2026-01-01T00:00Z\\n"',
    ],
    "epoch_seconds": ["1.5", '"1e3"', '"01"', "253402300800", "9223372036854775807", '"now"', "[1]"],
    "epoch_millis": ["253402300800000", '""'],
    "epoch_micros": ["253402300800000000"],
    "dd.MM.yyyy HH:mm": [
        '"29.03.2026 02:30"', '"31.02.2026 00:00"', '"1.1.2026 02:00"', '"01.01.2026 02:00 "', '"x"'
    ],
}  # fmt: skip


def test_timestamps_in_further_forms(spark: SparkSession, make_batch: MakeBatch) -> None:
    own = f'"{MILLENNIUM}"'
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        for number, (name, stamps) in enumerate(STAMPS.items()):
            good = stamps | {own: "2026-01-01 00:00:00"}
            texts = [*good, *NO_STAMPS.get(name, ())]
            manifest = make_batch(
                [JmsMessage.text(f'{{"t":{text},"l":[{text}]}}') for text in texts], batch_id=f"b{number}"
            )
            messages = Batch(manifest, take_fence(manifest.folder)).messages(spark)
            schema = "t TIMESTAMP NOT NULL, l ARRAY<TIMESTAMP>"
            mapped = map_json(messages, schema, timestamp_formats=[name])
            utc = "CAST(to_utc_timestamp(t, 'Europe/Berlin') AS STRING) AS t"
            rows = mapped.rows.selectExpr("_jms.position", utc, "l[0] = t AS same").collect()
            assert {texts[row.position]: row.t for row in rows} == good
            assert all(row.same for row in rows)
            rejects = {row._jms.position: row.exception_message for row in mapped.rejects.collect()}
            assert rejects.keys() == set(range(len(good), len(texts)))
            assert all(why.startswith("field 't': the value is no TIMESTAMP, ") for why in rejects.values())
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.parametrize("name", ["bogus", "HH:mm", "epoch", "EEE, dd MMM yyyy HH:mm:ss zzz"])
def test_a_format_of_timestamps_that_spark_does_not_know_is_refused(
    spark: SparkSession, make_batch: MakeBatch, name: str
) -> None:
    manifest = make_batch([JmsMessage.text("{}")])
    messages = Batch(manifest, take_fence(manifest.folder)).messages(spark)
    with pytest.raises(ConfigurationError, match=f"timestamp format '{name}': "):
        map_json(messages, "t TIMESTAMP", timestamp_formats=[name])


def test_a_misfit_is_named_by_its_path(spark: SparkSession, make_batch: MakeBatch) -> None:
    bodies = [
        '{"items":[{"price":1},{"price":2.5},{"price":2.55}]}',
        '{"items":[{"price":1},{"more":[{"deep":{}}]}]}',
        '{"items":[{"price":1.1,"note":"5"}]}',
        '{"items":[{"price":1.1,"note":5}]}',
    ]
    manifest = make_batch([JmsMessage.text(body) for body in bodies])
    messages = Batch(manifest, take_fence(manifest.folder)).messages(spark)
    mapped = map_json(messages, "items ARRAY<STRUCT<price: DECIMAL(3,1) NOT NULL, note: STRING>>")
    assert {row._jms.position: row.exception_message for row in mapped.rejects.collect()} == {
        0: "field 'items[2].price': the value is no DECIMAL(3,1), found the number 2.55",
        1: "required but missing: 'items[1].price'",
        3: "field 'items[0].note': the value is no STRING, found the number 5",
    }
    assert [row._jms.position for row in mapped.rows.collect()] == [2]


def test_a_misfit_in_an_array_within_an_array_is_named_by_both_places(
    spark: SparkSession, make_batch: MakeBatch
) -> None:
    """In particular if both values are written with the same number of characters in SQL, as here."""
    bodies = ['{"ab":[{"xyz":[1]},{"xyz":[1,2,"q"]}]}', '{"m":{"k":{"xy":{"n":{"p":5}}}}}', '{"m":{"k":{}}}']
    manifest = make_batch([JmsMessage.text(body) for body in bodies])
    messages = Batch(manifest, take_fence(manifest.folder)).messages(spark)
    schema = "ab ARRAY<STRUCT<xyz: ARRAY<INT>>>, m MAP<STRING, STRUCT<xy: MAP<STRING, MAP<STRING, BOOLEAN>>>>"
    mapped = map_json(messages, schema)
    assert {row._jms.position: row.exception_message for row in mapped.rejects.collect()} == {
        0: "field 'ab[1].xyz[2]': the value is no INT, found the string \"q\"",
        1: "field 'm['k'].xy['n']['p']': the value is no BOOLEAN, found the number 5",
    }


def test_a_number_beyond_double_anywhere_in_a_variant_is_turned_away(
    spark: SparkSession, make_batch: MakeBatch
) -> None:
    digits = "9" * 309
    bodies = [
        '{"v":{"a":[1,{"b":-1e400}]}}',
        f'{{"v":[{digits}]}}',
        '{"v":["Infinity"],"left out":1e100}',
        '{"v":["Infinity","-Infinity"],"left out":1e400}',
        '{"v":1,"left out":1e400}',
        '{"v":["1e400",1e308]}',
    ]
    manifest = make_batch([JmsMessage.text(body) for body in bodies])
    messages = Batch(manifest, take_fence(manifest.folder)).messages(spark)
    mapped = map_json(messages, "v VARIANT")
    fault = "field 'v': the value has a number beyond DOUBLE"
    # Of the fourth, only the field that is left out has one; a string that looks like it is in doubt then.
    assert {row._jms.position: row.exception_message for row in mapped.rejects.collect()} == dict.fromkeys(
        (0, 1, 3), fault
    )
    assert {
        row.position: row.v for row in mapped.rows.selectExpr("_jms.position", "to_json(v) AS v").collect()
    } == {
        2: '["Infinity"]',
        4: "1",
        5: '["1e400",1.0E308]',
    }


@pytest.mark.usefixtures("spark")
def test_every_type_of_spark_has_a_rule_or_is_refused() -> None:
    from pyspark.sql import types  # noqa: PLC0415 - only the tests that ask for it pay for it

    def concrete(kind: type[types.DataType]) -> set[type[types.DataType]]:
        found = set().union(*(concrete(each) for each in kind.__subclasses__()))
        return found or {kind}

    def within(kind: types.DataType) -> set[type[types.DataType]]:
        parts = [getattr(kind, name, None) for name in ("elementType", "keyType", "valueType")]
        parts += [field.dataType for field in getattr(kind, "fields", ())]
        return {type(kind)}.union(*(within(part) for part in parts if part is not None))

    known = set().union(*(within(types.DataType.fromDDL(kind)) for kind in (*FITTING, *REFUSED)))
    known |= {types.StructField, types.UserDefinedType}  # a part of a struct; what has no DDL
    missing = {
        kind.__name__ for kind in concrete(types.DataType) - known if kind.__module__ == types.__name__
    }
    assert missing == set()


@pytest.mark.parametrize("kind", REFUSED)
def test_a_type_without_a_rule_is_refused(spark: SparkSession, kind: str) -> None:
    messages = spark.range(1)
    with pytest.raises(ConfigurationError, match="no JSON value is read as"):
        map_json(messages, f"a {kind}")


def test_a_body_is_read_once_whatever_the_number_of_columns(spark: SparkSession) -> None:
    def readings(columns: int) -> int:
        messages = spark.createDataFrame([], MESSAGE_DDL)
        rows = map_json(messages, ", ".join(f"c{number} STRING" for number in range(columns))).rows
        return str(rows._jdf.queryExecution().optimizedPlan().toString()).count("from_json(")

    assert readings(8) == readings(2)
