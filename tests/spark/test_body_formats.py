"""Bodies in XML and CSV: every text as every type, and the reasons for messages that don't fit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

import pytest

from airflow_provider_jmsjca import Batch, ConfigurationError, JmsMessage, Mapped
from tests.internals.spark import body_options, main
from tests.internals.spool import Done, take_fence
from tests.spark.conftest import MakeBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = (
    "0", "-1", "+1", "007", "1.0", "1.5", "1e2", "128", "32768", "2147483648", "9223372036854775808",
    "0.1000000000000000000001", "123.45", "1234.5", "1e39", "1e400", "3,50", "1.234,50", "true", "TRUE",
    "NaN", "Infinity", "YQ==", "YQ", "2020-02-29", "2020-02-30", "2020-02-29T05:06:07",
    "2020-02-29T05:06:07Z", "2020-02-29 05:06:07", "it's <x> & \"y\"", "null", "{}",
)  # fmt: skip
FLOATS = {
    "0": "0.0", "-1": "-1.0", "1.0": "1.0", "1.5": "1.5", "1e2": "100.0", "128": "128.0", "32768": "32768.0",
    "0.1000000000000000000001": "0.1", "123.45": "123.45", "1234.5": "1234.5",
}  # fmt: skip
FITTING: dict[str, dict[str, str]] = {
    "STRING": {text: text for text in TEXTS},
    "BOOLEAN": {"true": "true"},
    "TINYINT": {"0": "0", "-1": "-1"},
    "SMALLINT": {"0": "0", "-1": "-1", "128": "128"},
    "INT": {"0": "0", "-1": "-1", "128": "128", "32768": "32768"},
    "BIGINT": {"0": "0", "-1": "-1", "128": "128", "32768": "32768", "2147483648": "2147483648"},
    "FLOAT": FLOATS | {"2147483648": "2.14748365E9", "9223372036854775808": "9.223372E18"},
    "DOUBLE": FLOATS | {
        "2147483648": "2.147483648E9", "9223372036854775808": "9.223372036854776E18", "1e39": "1.0E39"
    },
    "DECIMAL(5,2)": {
        "0": "0.00", "-1": "-1.00", "1.0": "1.00", "1.5": "1.50", "128": "128.00", "123.45": "123.45"
    },
    "DATE": {"2020-02-29": "2020-02-29"},
    "TIMESTAMP": {
        "2020-02-29T05:06:07": "2020-02-29 05:06:07", "2020-02-29T05:06:07Z": "2020-02-29 05:06:07"
    },
    "TIMESTAMP_NTZ": {"2020-02-29T05:06:07": "2020-02-29 05:06:07"},
    "BINARY": {text: text for text in ("1e39", "true", "TRUE", "Infinity", "YQ==", "null")},
}  # fmt: skip
# From Java 19 on this number is written with a digit less.
OLDER = {"2.1474836E9": "2.14748365E9"}

UNDECODABLE = (
    "the message can't be decoded: ValueError: 1000000000000000 ms since the epoch is not within the years "
    "1 to 9999"
)


@pytest.mark.parametrize("name", ["xml", "csv"])
def test_every_text_as_every_type(spark: SparkSession, make_batch: MakeBatch, name: str) -> None:
    fields = {kind: f"v{number}" for number, kind in enumerate(FITTING)}
    asked = [(kind, text) for kind in FITTING for text in TEXTS]

    def body(field: str, text: str) -> str:
        if name == "xml":
            return f"<o><{field}>{escape(text)}</{field}></o>"
        quoted = text.replace('"', '""')
        return f'{field}\n"{quoted}"\n'

    manifest = make_batch([JmsMessage.text(body(fields[kind], text)) for kind, text in asked])
    batch = Batch(manifest, take_fence(manifest.folder))
    schema = ", ".join(f"{field} {kind}" for kind, field in fields.items())
    mapped = read(batch, spark, name, schema)
    shown = [
        f"base64({field}) AS {field}" if kind == "BINARY" else f"CAST({field} AS STRING) AS {field}"
        for kind, field in fields.items()
    ]
    found: dict[str, dict[str, str]] = {kind: {} for kind in FITTING}
    for row in mapped.rows.selectExpr("_jms.position", *shown).collect():
        kind, text = asked[row.position]
        found[kind][text] = OLDER.get(row[fields[kind]], row[fields[kind]])
    assert {kind: values for kind, values in found.items() if values != FITTING[kind]} == {}
    rejects = {asked[row._jms.position]: row.exception_message for row in mapped.rejects.collect()}
    assert rejects.keys() == {(kind, text) for kind, text in asked if text not in FITTING[kind]}
    expected = {
        "3,50": 'found the string "3,50"',
        "1.234,50": 'found the string "1.234,50"',
        "1234.5": "found the number 1234.5",
        "007": 'found the string "007"',
        "NaN": 'found the string "NaN"',
        "1e400": "found a number beyond DOUBLE",
    }
    decimal = fields["DECIMAL(5,2)"]
    assert {text: rejects["DECIMAL(5,2)", text] for text in expected} == {
        text: f"field '{decimal}': the value is no DECIMAL(5,2), {what}" for text, what in expected.items()
    }


def read(batch: Batch, spark: SparkSession, name: str, schema: str) -> Mapped:
    messages = batch.messages(spark)
    return (
        batch.xml(messages, schema, root="o") if name == "xml" else batch.csv(messages, schema, header=True)
    )


def test_messages_that_do_not_fit_are_rejected_with_the_reason(
    spark: SparkSession, make_batch: MakeBatch
) -> None:
    good = "<ns:o xmlns:ns='urn:o' v='2'><ns:id>1</ns:id><i><n>1</n></i><i><n>2</n></i></ns:o>"
    bodies = [
        (JmsMessage.text(good), None),
        (JmsMessage.bytes(good.encode("utf-16")), None),
        (
            JmsMessage.text("<o><id>1</id><i><n>x</n></i></o>"),
            "field 'i[0].n': the value is no INT, found the string \"x\"",
        ),
        (JmsMessage.text("<o><i/></o>"), "required but missing: 'i[0].n'"),
        (JmsMessage.text("<o/>"), "required but missing: 'id'"),
        (JmsMessage.text("<o/><o/>"), "text follows the root element of the body, line 1, column 5"),
        (JmsMessage.map({"id": 1}), "expected an XML body, found kind map"),
        (
            JmsMessage.text("<o/>", timestamp=10**15),
            UNDECODABLE,
        ),
    ]
    manifest = make_batch([message for message, _ in bodies])
    with Batch(manifest, take_fence(manifest.folder)) as batch:
        schema = "id INT NOT NULL, i ARRAY<STRUCT<n: INT NOT NULL>>, _v BIGINT"
        mapped = batch.xml(batch.messages(spark), schema, root="o", keep=["body_type"])
        rows = mapped.rows.selectExpr("id", "CAST(i AS STRING)", "_v", "body_type").collect()
        assert [tuple(row) for row in rows] == [(1, "[{1}, {2}]", 2, kind) for kind in ("text", "bytes")]
        rejects = {row._jms.position: row.exception_message for row in mapped.rejects.collect()}
        assert rejects == {at: why for at, (_, why) in enumerate(bodies) if why is not None}
        assert batch.reject(mapped.rejects) == len(rejects)


def test_a_schema_of_more_than_100_fields(spark: SparkSession, make_batch: MakeBatch) -> None:
    """From 100 fields on, Spark evaluates rows in another way: it generates no code for a whole stage."""
    groups = [f"g{number}" for number in range(13)]
    kinds = (
        "i: INT NOT NULL, d: DECIMAL(5,2), s: STRING, t: TIMESTAMP, b: BOOLEAN, f: DOUBLE, l: BIGINT, m: DATE"
    )
    values = "<d>1.5</d><s>x</s><t>2020-02-29T05:06:07Z</t><b>true</b><f>2.5</f><l>7</l><m>2020-02-29</m>"

    def body(last: str) -> str:
        numbers = dict.fromkeys(groups, "1") | {groups[-1]: last}
        inner = (f"<{group}><p><i>{number}</i>{values}</p></{group}>" for group, number in numbers.items())
        return f"<o>{''.join(inner)}</o>"

    manifest = make_batch([JmsMessage.text(body("2")), JmsMessage.text(body("x"))])
    with Batch(manifest, take_fence(manifest.folder)) as batch:
        schema = ", ".join(f"{group} STRUCT<p: STRUCT<{kinds}>>" for group in groups)
        mapped = batch.xml(batch.messages(spark), schema, root="o")
        (row,) = mapped.rows.selectExpr(*(f"CAST({group} AS STRING)" for group in groups)).collect()
        rest = "1.50, x, 2020-02-29 05:06:07, true, 2.5, 7, 2020-02-29"
        assert list(row) == [f"{{{{1, {rest}}}}}"] * 12 + [f"{{{{2, {rest}}}}}"]
        (reject,) = mapped.rejects.collect()
        assert reject.exception_message == "field 'g12.p.i': the value is no INT, found the string \"x\""
        assert batch.reject(mapped.rejects) == 1


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("xml", ["MAP<STRING, INT>", "VARIANT", "ARRAY<ARRAY<INT>>"]),
        ("csv", ["ARRAY<INT>", "STRUCT<x: INT>"]),
    ],
)
def test_types_that_the_format_does_not_have_are_refused(
    spark: SparkSession, make_batch: MakeBatch, name: str, kinds: list[str]
) -> None:
    manifest = make_batch([JmsMessage.text("x")])
    batch = Batch(manifest, take_fence(manifest.folder))
    for kind in kinds:
        with pytest.raises(ConfigurationError, match=f"field 'a': no {name.upper()} value is read as "):
            read(batch, spark, name, f"a {kind}")


def test_the_ready_made_job_reads_xml_and_csv(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    wanted = {
        "xml": (["--xml-root", "o"], ["<o><id>1</id></o>", "<p><id>1</id></p>"]),
        "csv": (["--csv-delimiter", ";", "--csv-header"], ["x;id\n9;1", "x;id\n9;3,50"]),
    }
    for name, (options, bodies) in wanted.items():
        manifest = make_batch([JmsMessage.text(body) for body in bodies], batch_id=name)
        fence = str(take_fence(manifest.folder))
        given = ["--manifest", manifest.uri, "--batch-id", name, "--fence", fence, "--body", name, *options]
        table = str(tmp_path / name)
        main([*given, "--table", table, "--schema", "id INT"])
        done = Done.read(manifest.folder)
        assert done is not None
        assert (done.stored, done.rejected) == ({table: 1}, 1)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"body": "xml"}, "--body xml: name the root element of the documents by --xml-root"),
        ({"body": "csv", "xml_root": "o"}, "--xml-root: not allowed with --body csv"),
        ({"body": "json", "csv_header": True}, "--csv-header: not allowed with --body json"),
    ],
)
def test_arguments_of_another_format_are_refused(given: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        body_options(argparse.Namespace(**given))
