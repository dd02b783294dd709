"""Bodies in Avro: every value as every type, and the reasons for messages that don't fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_jmsjca import Batch, ConfigurationError, JmsMessage
from tests.internals.spark import main
from tests.internals.spool import Done, take_fence
from tests.spark.conftest import MakeBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": each, "type": kind} for each, kind in fields.items()],
    }


def logical(kind: str, logical_type: str, /, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": logical_type, **more}


# By a name, the type and the bytes of a value.
VALUES: dict[str, tuple[Any, bytes]] = {
    "int 5": ("int", b"\x0a"),
    "int -200": ("int", b"\x8f\x03"),
    "long 2**31": ("long", b"\x80\x80\x80\x80\x10"),
    "float 0.1": ("float", b"\xcd\xcc\xcc\x3d"),
    "double 1.5": ("double", b"\x00\x00\x00\x00\x00\x00\xf8\x3f"),
    "double 2.0": ("double", b"\x00\x00\x00\x00\x00\x00\x00\x40"),
    "double 1e300": ("double", b"\x9c\x75\x00\x88\x3c\xe4\x37\x7e"),
    "NaN": ("double", b"\x00\x00\x00\x00\x00\x00\xf8\x7f"),
    "true": ("boolean", b"\x01"),
    '"5"': ("string", b"\x025"),
    '"YQ=="': ("string", b"\x08YQ=="),
    '"2020-02-29"': ("string", b"\x142020-02-29"),
    "bytes a": ("bytes", b"\x02a"),
    "enum": ({"type": "enum", "name": "E", "symbols": ["NEW"]}, b"\x00"),
    "date": (logical("int", "date"), b"\xa2\x9e\x02"),
    "millis": (logical("long", "timestamp-millis"), b"\xb0\xf8\xb2\xf5\x91\x5c"),
    "local": (logical("long", "local-timestamp-millis"), b"\xb0\xf8\xb2\xf5\x91\x5c"),
    "year 292278994": (logical("long", "timestamp-millis"), b"\xfe" + b"\xff" * 8 + b"\x01"),
    "decimal 1.50": (logical("bytes", "decimal", precision=5, scale=2), b"\x04\x00\x96"),
    "decimal 1.501": (logical("bytes", "decimal", precision=6, scale=3), b"\x04\x05\xdd"),
    "array [1]": ({"type": "array", "items": "int"}, b"\x02\x02\x00"),
    "map {x: 1}": ({"type": "map", "values": "int"}, b"\x02\x02x\x02\x00"),
    "record {x: 1}": (record("R", x="int"), b"\x02"),
}
WHOLE = {"int 5": "5", "int -200": "-200"}
DAY, MOMENT = "2020-02-29", "2020-02-29 05:06:07"
FITTING: dict[str, dict[str, str]] = {
    "STRING": {
        '"5"': "5", '"YQ=="': "YQ==", '"2020-02-29"': DAY, "bytes a": "YQ==", "enum": "NEW", "date": DAY,
        "millis": "2020-02-29T05:06:07Z", "local": "2020-02-29T05:06:07", "NaN": "NaN",
        "year 292278994": "9223372036854775807 ms since 1970",
    },
    "BOOLEAN": {"true": "true"},
    "TINYINT": {"int 5": "5"},
    "SMALLINT": WHOLE,
    "INT": WHOLE,
    "BIGINT": WHOLE | {"long 2**31": "2147483648"},
    "FLOAT": {
        "int 5": "5.0", "int -200": "-200.0", "long 2**31": "2.14748365E9", "float 0.1": "0.1",
        "double 1.5": "1.5", "double 2.0": "2.0", "decimal 1.50": "1.5", "decimal 1.501": "1.501",
    },
    "DOUBLE": {
        "int 5": "5.0", "int -200": "-200.0", "long 2**31": "2.147483648E9",
        "float 0.1": "0.10000000149011612", "double 1.5": "1.5", "double 2.0": "2.0",
        "double 1e300": "1.0E300", "decimal 1.50": "1.5", "decimal 1.501": "1.501",
    },
    "DECIMAL(5,2)": {
        "int 5": "5.00", "int -200": "-200.00", "double 1.5": "1.50", "double 2.0": "2.00",
        "decimal 1.50": "1.50",
    },
    "DATE": {"date": DAY, '"2020-02-29"': DAY},
    "TIMESTAMP": {"millis": MOMENT, "local": MOMENT},
    "TIMESTAMP_NTZ": {"local": MOMENT},
    "BINARY": {'"YQ=="': "YQ==", "bytes a": "YQ=="},
}  # fmt: skip
# From Java 19 on this number is written with a digit less.
OLDER = {"2.1474836E9": "2.14748365E9"}


def test_every_value_as_every_type(spark: SparkSession, make_batch: MakeBatch) -> None:
    fields = {kind: f"v{number}" for number, kind in enumerate(FITTING)}
    asked = [(kind, name) for kind in FITTING for name in VALUES]
    every = ["null", *(kind for kind, _ in VALUES.values())]
    # A union defines its types where they are first written; later fields name them.
    named = [each["name"] if isinstance(each, dict) and "name" in each else each for each in every]
    schema = record("A", **{field: every if field == "v0" else named for field in fields.values()})

    def body(kind: str, name: str) -> bytes:
        value = bytes([2 * (list(VALUES).index(name) + 1)]) + VALUES[name][1]
        return b"".join(value if each == kind else b"\x00" for each in FITTING)

    manifest = make_batch([JmsMessage.bytes(body(kind, name)) for kind, name in asked])
    batch = Batch(manifest, take_fence(manifest.folder))
    columns = ", ".join(f"{field} {kind}" for kind, field in fields.items())
    mapped = batch.avro(batch.messages(spark), columns, writer_schema=json.dumps(schema))
    shown = [
        f"base64({field}) AS {field}" if kind == "BINARY" else f"CAST({field} AS STRING) AS {field}"
        for kind, field in fields.items()
    ]
    found: dict[str, dict[str, str]] = {kind: {} for kind in FITTING}
    for row in mapped.rows.selectExpr("_jms.position", *shown).collect():
        kind, name = asked[row.position]
        found[kind][name] = OLDER.get(row[fields[kind]], row[fields[kind]])
    assert {kind: values for kind, values in found.items() if values != FITTING[kind]} == {}
    rejects = {asked[row._jms.position]: row.exception_message for row in mapped.rejects.collect()}
    assert rejects.keys() == {(kind, name) for kind, name in asked if name not in FITTING[kind]}
    expected = {
        ("INT", "long 2**31"): "INT, found the number 2147483648",
        ("INT", "double 2.0"): "INT, found the number 2 with a decimal point",
        ("DOUBLE", "NaN"): 'DOUBLE, found the string "NaN"',
        ("DECIMAL(5,2)", "decimal 1.501"): "DECIMAL(5,2), found the number 1.501",
        ("TIMESTAMP", "year 292278994"):
            'TIMESTAMP, found the string "9223372036854775807 ms since 1970"',
        ("TIMESTAMP_NTZ", "millis"): 'TIMESTAMP_NTZ, found the string "2020-02-29T05:06:07Z"',
        ("INT", "record {x: 1}"): "INT, found an object",
    }  # fmt: skip
    assert {each: rejects[each] for each in expected} == {
        (kind, name): f"field '{fields[kind]}': the value is no {why}"
        for (kind, name), why in expected.items()
    }


ORDER = record(
    "Order",
    id="long",
    note=["null", "string"],
    lines={"type": "array", "items": record("Line", sku="string", n=["null", "int"])},
    raw="bytes",
)
# id 5; no note; no lines; no bytes.
SMALL = b"\x0a\x00\x00\x00"
# id -1; "ü"; one line: "a", 1; a byte.
LARGE = b"\x01\x02\x04\xc3\xbc\x02\x02a\x02\x02\x00\x02z"
UNDECODABLE = (
    "the message can't be decoded: ValueError: 1000000000000000 ms since the epoch is not within the years 1 "
    "to 9999"
)


def test_messages_that_do_not_fit_are_rejected_with_the_reason(
    spark: SparkSession, make_batch: MakeBatch
) -> None:
    ends = "the body ends here, so it may be cut off, or another schema wrote it"
    bodies: list[tuple[JmsMessage, tuple[object, ...] | str]] = [
        (JmsMessage.bytes(SMALL, {"region": "eu"}), (5, None, "[]", b"", "eu")),
        (JmsMessage.bytes(LARGE), (-1, "ü", "[{a, 1}]", b"z", None)),
        (JmsMessage.bytes(LARGE[:-1]), f"field 'raw': {ends}"),
        (JmsMessage.bytes(SMALL + b"\0"), "the body is longer than an Avro record of this schema, by 1 byte"),
        (JmsMessage.bytes(b"\x0a\x02\x02\xff\x00\x00"), "field 'note': the text is not UTF-8"),
        (JmsMessage.bytes(b""), "the body is empty"),
        (JmsMessage.text("\x0a\0\0\0"), "expected an Avro body, found kind text"),
        (JmsMessage.map({"id": 5}), "expected an Avro body, found kind map"),
        (JmsMessage.bytes(SMALL, timestamp=10**15), UNDECODABLE),
    ]
    manifest = make_batch([message for message, _ in bodies])
    with Batch(manifest, take_fence(manifest.folder)) as batch:
        keep = ["properties['region'] AS region"]
        mapped = batch.avro(batch.messages(spark), writer_schema=json.dumps(ORDER), keep=keep)
        assert mapped.rows.columns == ["id", "note", "lines", "raw", "region", "_jms"]
        shown = ("_jms.position", "id", "note", "CAST(lines AS STRING)", "raw", "region")
        found: dict[int, object] = {
            row.position: (*tuple(row)[1:4], bytes(row.raw), row.region)
            for row in mapped.rows.selectExpr(*shown).collect()
        }
        found |= {row._jms.position: row.exception_message for row in mapped.rejects.collect()}
        assert found == {at: expected for at, (_, expected) in enumerate(bodies)}
        batch.reject(mapped.rejects)


def test_fields_that_are_not_wanted_are_left_out(spark: SparkSession, make_batch: MakeBatch) -> None:
    prefix = b"\0\0\0\0\x07"
    manifest = make_batch([JmsMessage.bytes(prefix + LARGE), JmsMessage.bytes(prefix + SMALL)])
    batch = Batch(manifest, take_fence(manifest.folder))
    mapped = batch.avro(
        batch.messages(spark),
        "id INT, note STRING NOT NULL, more STRING, lines ARRAY<STRUCT<n: LONG>>",
        writer_schema=json.dumps(ORDER),
        schema_id=7,
    )
    found = mapped.rows.selectExpr("id", "note", "more", "CAST(lines AS STRING)").collect()
    assert [tuple(row) for row in found] == [(-1, "ü", None, "[{1}]")]
    (reject,) = mapped.rejects.collect()
    assert reject.exception_message == "required but missing: 'note'"


TREE = record("A", a=["null", "A", "int"])


@pytest.mark.parametrize(
    ("schema", "options", "fault"),
    [
        (record("A", a="no"), {}, "the type 'no' is not defined before its use"),
        (
            record("A", a=["int", "string"]),
            {},
            "field 'a': a union of several types; .* allow variants",
        ),
        (record("A", a=["null", "A"]), {}, "field 'a': \"A\" contains itself"),
        (TREE, {"allow": ["default"]}, "expected variants, defaults, aliases"),
        (
            TREE,
            {"schema": "a INT", "allow": ["variants"]},
            "avro: allow can't be combined with fields of your own",
        ),
        (
            ORDER,
            {"schema": "raw STRING"},
            "schema: field 'raw': the bodies have BINARY, which isn't read as STRING",
        ),
        (
            ORDER,
            {"schema": "lines ARRAY<STRUCT<sku: BINARY>>"},
            r"field 'lines\[\].sku': the bodies have STRING",
        ),
        (record("A", _jms="int"), {}, "the name '_jms' is reserved"),
        (record("A"), {}, "a record without fields"),
    ],
)
def test_schemas_that_can_not_be_used_are_refused(
    spark: SparkSession,
    make_batch: MakeBatch,
    schema: dict[str, Any],
    options: dict[str, Any],
    fault: str,
) -> None:
    manifest = make_batch([JmsMessage.bytes(SMALL)])
    batch = Batch(manifest, take_fence(manifest.folder))
    with pytest.raises(ConfigurationError, match=fault):
        batch.avro(batch.messages(spark), writer_schema=json.dumps(schema), **options)


def test_the_ready_made_job_reads_avro(
    spark: SparkSession,
    make_batch: MakeBatch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    schema, table = tmp_path / "order.avsc", str(tmp_path / "table")
    schema.write_text(f"// of the shop\n{json.dumps(TREE)}")
    # The first is {"a":{"a":1}}, of 13 characters. The second has another number, the third a longer value.
    prefix = b"\0\0\0\0\x07"
    bodies = (prefix + b"\x02\x04\x02", b"\0\0\0\0\x08\x00", prefix + b"\x02\x04\x14")
    manifest = make_batch([JmsMessage.bytes(body) for body in bodies])
    fence = str(take_fence(manifest.folder))
    given = ["--manifest", manifest.uri, "--batch-id", manifest.batch_id, "--fence", fence]
    read = ["--body", "avro", "--avro-schema-id", "7", "--schema-allow", "variants", "--avro-max-json", "13"]
    main([*given, "--table", table, *read, "--avro-writer-schema", str(schema), "--keep", "body_type"])
    done = Done.read(manifest.folder)
    assert done is not None
    assert (done.stored, done.rejected) == ({table: 1}, 2)
    (row,) = spark.read.parquet(table).selectExpr("to_json(a)", "body_type").collect()
    assert tuple(row) == ('{"a":1}', "bytes")
    other = make_batch(batch_id="other")
    fence = str(take_fence(other.folder))
    with pytest.raises(SystemExit, match="78"):
        main(["--manifest", other.uri, "--batch-id", "other", "--fence", fence, "--table", table, *read])
    assert "--body avro: name a file with the schema of the bodies" in capsys.readouterr().err
