"""Messages to a table: `spark-submit messages_to_table.py --manifest ... --table ... [--schema ...]`.

The table is a folder of Parquet files, with `--format delta` a Delta Lake table, or with `--format jdbc` a
table of PostgreSQL. For `jdbc`, the database's address, user and password are taken from `--jdbc-url`,
`--jdbc-user` and `--jdbc-password-file`. Missing ones are taken from the driver's environment
(`JMSJCA_JDBC_URL`, `JMSJCA_JDBC_USER`, `JMSJCA_JDBC_PASSWORD`), which `jdbc_conn_id` of the operator sets.
The format `jdbc` needs a schema.
Without `--schema` the table has the columns of the message schema. With it (`"carrier STRING NOT NULL, delay
DOUBLE"`) each body is read as a JSON object with these fields, and messages that don't fit are rejected.
`--body xml --xml-root order` reads XML documents, and `--body csv` one CSV record from each body.
`--body avro --avro-writer-schema order.avsc` reads Avro records, by default all of their fields.
Each table also has `jms_batch_id`, which names the batch, and with a schema `jms_segment` and `jms_position`,
which identify the message of each row.
`--schema-file` names a file with the fields: as text like that of `--schema`, in Spark's JSON form, as an
Avro schema or as a JSON Schema. With `--schema-allow variants`, parts of the file's schema without a Spark
type, such as choices and recursions, are read as VARIANT.
`--keep` adds columns of the message:
`--keep message_id "properties['region'] AS region"`.
`--preview` prints the rows and rejects of the first 100 messages of the batch, or of `--preview-file`, and
writes nothing. A preview needs no `--table` and no `--fence`.
Spark logs only warnings and errors, unless `spark.log.level` is set.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from pyspark import SparkConf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.escaping import escaped, escaped_json
from airflow_provider_jmsjca.spark.bodies.formats import MOST_JSON
from airflow_provider_jmsjca.spark.expectations import OnViolation, parsed_expectations
from airflow_provider_jmsjca.spark.job import Batch, leave
from airflow_provider_jmsjca.spark.preview import MESSAGES, Preview
from airflow_provider_jmsjca.spark.schemas.schema_file import read_schema, schema_text
from airflow_provider_jmsjca.spark.tables import delta
from airflow_provider_jmsjca.spark.tables.columns import ORIGIN
from airflow_provider_jmsjca.spool.manifest import Manifest


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job.

    Args:
        arguments: Arguments without the script's name; `None` means those of the command line.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if any(each.partition("=")[0] == "--preview" for each in given):
        _preview(given)
        return
    with Batch.from_args(given) as batch:
        asked = _parser().parse_args(batch.arguments)
        options = named_values("--option", asked.option)
        if asked.format == "jdbc":
            options |= jdbc_options(asked, os.environ)
        conf = SparkConf().setAppName(f"jms {batch.batch_id}").setIfMissing("spark.log.level", "WARN")
        conf.setIfMissing("spark.sql.shuffle.partitions", str(batch.partitions))
        if asked.format == "delta":
            settings = {"spark.databricks.delta.snapshotPartitions": str(batch.partitions)}
            for name, value in (delta.SESSION | settings).items():
                conf.setIfMissing(name, value)
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
        try:
            rows = _rows(batch, spark, asked)
            batch.write(
                rows,
                asked.table,
                format=asked.format,
                mode=asked.mode,
                partition_by=asked.partition_by,
                options=options,
                cluster_by=asked.cluster_by,
                table_properties=named_values("--table-property", asked.table_property),
                keys=asked.keys,
                order_by=asked.order_by,
                delete_when=asked.delete_when,
                evolve=asked.evolve,
            )
            if asked.rejects_table is not None:
                jdbc = options if asked.format == "jdbc" else None
                batch.store_rejects(spark, asked.rejects_table, format=asked.format, options=jdbc)
        finally:
            spark.stop()


def _preview(arguments: Sequence[str]) -> None:
    """Print the rows and rejects of the first messages; nothing is written, and no fence is needed."""
    parser = _parser(is_preview=True)
    parser.add_argument("--preview", nargs="?", type=int, const=MESSAGES, metavar="MESSAGES")
    parser.add_argument("--preview-file", metavar="FILE")
    for name in ("--manifest", "--batch-id", "--fence"):
        parser.add_argument(name)
    asked = parser.parse_args(arguments)
    try:
        manifest = None if asked.manifest is None else Manifest.read(asked.manifest)
        messages = None if asked.preview_file is None else _browsed(Path(asked.preview_file))
        preview = Preview(manifest, messages=messages, limit=asked.preview)
    except (SpoolError, ConfigurationError) as error:
        leave(error)
    with preview as batch:
        conf = SparkConf().setAppName("jms preview").setIfMissing("spark.log.level", "WARN")
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
        try:
            kept = _rows(batch, spark, asked)
            if ORIGIN in kept.columns:
                kept = batch.kept(kept)
            shown = kept.selectExpr("to_json(struct(*), map('ignoreNullFields', 'false'))")
            rows, rejected = [row[0] for row in shown.collect()], batch.rejected()
        finally:
            spark.stop()
    for row in rows:
        sys.stdout.write(f"{escaped_json(row)}\n")
    for (segment, position), reason in rejected.items():
        sys.stdout.write(f"rejected: segment {segment} position {position}: {escaped(reason)}\n")
    sys.stdout.write(f"preview: {len(rows)} rows, {len(rejected)} rejected messages, nothing written\n")


def _browsed(file: Path) -> Iterator[JmsMessage]:
    """Yield the messages of a file with a JSON object on each line, as `queues browse --messages` prints."""
    try:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                yield JmsMessage.from_json(json.loads(line))
    except OSError as error:
        raise ConfigurationError(f"{file}: can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file}: a line is not a message in JSON form: {escaped(error)}") from error


def _rows(batch: Batch, spark: SparkSession, asked: argparse.Namespace) -> DataFrame:
    """Reject the messages that don't fit, and return the rows of the others for the table."""
    messages = batch.messages(spark)
    rows = messages.drop(ORIGIN)  # its parts are columns of the message schema
    schema, body = _schema(asked), body_options(asked)
    if schema is not None or asked.body == "avro":
        if asked.rescue is not None:
            if asked.body != "json":
                raise ConfigurationError(
                    f"--rescue: only with JSON, not with --body {asked.body}; add the names to the schema"
                )
            body |= {"rescue": asked.rescue}
        read = partial(getattr(batch, asked.body), **body)
        mapped = read(messages, schema, keep=asked.keep, timestamp_formats=asked.timestamp_format)
        batch.reject(mapped.rejects)
        rows = mapped.rows
    for action in (OnViolation.FAIL, OnViolation.DROP, OnViolation.REJECT):
        given = parsed_expectations("--expect", getattr(asked, f"expect_{action}"))
        if given:
            rows = batch.expect(rows, given, action)
    return rows


def _schema(asked: argparse.Namespace) -> StructType | str | None:
    """Return the fields of the bodies that the arguments name.

    Returns:
        `None` if they name none: for Avro the fields are those of the writer's schema. Otherwise the bodies
        aren't read, and the table gets the columns of the message schema.

    Raises:
        ConfigurationError: Another argument needs fields, and none are named. Or the file can't be read.
    """
    if asked.schema_file is not None:
        return read_schema(Path(asked.schema_file), allow=asked.schema_allow, type_name=asked.schema_type)
    is_own = asked.body == "avro" and asked.schema is None  # the columns are those of Avro's schema
    if (asked.schema_allow and not is_own) or asked.schema_type is not None:
        raise ConfigurationError("--schema-allow and --schema-type belong to --schema-file")
    if asked.schema is not None:
        return str(asked.schema)
    if is_own:
        return None
    if asked.format == "jdbc":
        raise ConfigurationError(
            "--format jdbc: a database has no type for all columns of a message; name the fields of its body "
            "by --schema or --schema-file"
        )
    given = {
        "--body": asked.body != "json",
        "--timestamp-format": asked.timestamp_format,
        "--rescue": asked.rescue,
        "--keep": asked.keep,
    }
    for name, is_given in given.items():
        if is_given:
            raise ConfigurationError(f"{name} needs the fields of --schema or --schema-file")
    return None


def _parser(*, is_preview: bool = False) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--table", required=not is_preview, help="path or URI of the table, or its name")
    parser.add_argument("--format", default="parquet", help="parquet, delta or jdbc")
    parser.add_argument(
        "--mode", default="append", help="append; delta also overwrite; delta and jdbc also upsert"
    )
    parser.add_argument("--cluster-by", nargs="*", default=[], help="with delta: columns to cluster by")
    parser.add_argument(
        "--table-property", nargs="*", default=[], metavar="NAME=VALUE", help="of a new Delta table"
    )
    parser.add_argument(
        "--option", nargs="*", default=[], metavar="NAME=VALUE", help="of Spark's writer or of jdbc"
    )
    parser.add_argument("--keys", nargs="*", default=[], help="with upsert: columns that identify a row")
    parser.add_argument("--order-by", help="with upsert: the column that tells the newer row")
    parser.add_argument("--delete-when", help="with upsert: a condition; such a row deletes its key")
    fields = parser.add_mutually_exclusive_group()
    fields.add_argument("--schema", help="fields of the bodies, as in CREATE TABLE")
    fields.add_argument(
        "--schema-file", help="a file with the fields: words, Spark's JSON form, Avro or JSON Schema"
    )
    parser.add_argument(
        "--schema-allow",
        nargs="*",
        default=[],
        metavar="PART",
        help="with --schema-file: parts that are refused otherwise: variants, defaults, aliases",
    )
    parser.add_argument("--schema-type", help="with --schema-file: which of several types the bodies have")
    _add_body_arguments(parser)
    parser.add_argument("--keep", nargs="*", default=[], help="columns of the message to keep")
    parser.add_argument(
        "--rescue", metavar="COLUMN", help="with json: a column for fields that the schema doesn't name"
    )
    parser.add_argument(
        "--evolve",
        nargs="*",
        default=[],
        metavar="HOW",
        help="widen: change columns that are too narrow; add: columns for rescued fields",
    )
    parser.add_argument("--partition-by", nargs="*", default=[], help="columns to partition by")
    for action in OnViolation:
        flag = "--expect" if action is OnViolation.REJECT else f"--expect-or-{action}"
        parser.add_argument(
            flag,
            dest=f"expect_{action}",
            nargs="*",
            action="extend",
            default=[],
            metavar="NAME: CONDITION",
            help=f"{action} where a row violates the condition",
        )
    parser.add_argument("--rejects-table", help="a table for rejected messages, of the same format")
    parser.add_argument("--jdbc-url", help="with jdbc: jdbc:postgresql://host:5432/database")
    parser.add_argument("--jdbc-user", help="with jdbc: the user")
    parser.add_argument("--jdbc-password-file", help="with jdbc: a file that has the password")
    return parser


def named_values(argument: str, given: Sequence[str]) -> dict[str, str]:
    """Return values by name.

    Args:
        argument: Name of the command-line argument, for the error.
        given: Texts of the form `name=value`.

    Raises:
        ConfigurationError: A text has another form.
    """
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not name or not sign:
            raise ConfigurationError(f"{argument} {text!r}: expected NAME=VALUE")
        found[name] = value
    return found


def _add_body_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--body", choices=["json", "xml", "csv", "avro"], default="json", help="how bodies are read"
    )
    parser.add_argument(
        "--timestamp-format",
        nargs="+",
        action="extend",
        default=[],
        help="further forms of timestamps: usual, epoch_seconds, epoch_millis, epoch_micros, patterns",
    )
    parser.add_argument("--xml-root", help="with xml: name of the root element; required")
    parser.add_argument(
        "--xml-empty-as-null", action="store_const", const=True, help="with xml: empty elements are NULL"
    )
    parser.add_argument("--csv-delimiter", help="with csv: the character between values, a comma by default")
    parser.add_argument("--csv-quote", help="with csv: the character around values, or an empty text")
    parser.add_argument(
        "--csv-header", action="store_const", const=True, help="with csv: the first line names the values"
    )
    parser.add_argument("--csv-null", help="with csv: the text that means NULL, empty by default")
    parser.add_argument(
        "--avro-writer-schema", metavar="FILE", help="with avro: the schema of the bodies (.avsc); required"
    )
    parser.add_argument(
        "--avro-schema-id", type=int, metavar="N", help="with avro: the number in Confluent's prefix"
    )
    parser.add_argument(
        "--avro-max-json",
        type=int,
        metavar="N",
        help=f"with avro: a record with more characters as JSON is rejected; {MOST_JSON:,} by default",
    )


def body_options(asked: argparse.Namespace) -> dict[str, object]:
    """Return the keyword arguments, from the command line, for the method of `Batch` that reads the bodies.

    Args:
        asked: Parsed arguments: `body`, and those that begin with `xml_`, `csv_` and `avro_`, each of which
            may be `None`.

    Raises:
        ConfigurationError: An argument belongs to another format, the root of XML or the schema of Avro is
            missing, or the schema can't be read.
    """
    given = {
        name: value
        for name, value in vars(asked).items()
        if name.startswith(("xml_", "csv_", "avro_")) and value is not None
    }
    foreign = [name for name in given if not name.startswith(f"{asked.body}_")]
    if foreign:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in foreign)
        raise ConfigurationError(f"{names}: not allowed with --body {asked.body}")
    if asked.body == "xml" and "xml_root" not in given:
        raise ConfigurationError("--body xml: name the root element of the documents by --xml-root")
    if asked.body == "avro":
        if "avro_writer_schema" not in given:
            raise ConfigurationError(
                "--body avro: name a file with the schema of the bodies by --avro-writer-schema: the bytes "
                "don't say which fields they have"
            )
        given["avro_writer_schema"] = schema_text(Path(given["avro_writer_schema"]))
        if asked.schema is None and asked.schema_file is None:
            given["avro_allow"] = asked.schema_allow
    return {name.removeprefix(f"{asked.body}_"): value for name, value in given.items()}


def jdbc_options(asked: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's options for JDBC: from the command line, otherwise from the environment.

    Args:
        asked: Parsed arguments `jdbc_url`, `jdbc_user` and `jdbc_password_file`, each of which may be `None`.
        environment: Environment variables of the driver.

    Raises:
        ConfigurationError: The address is missing or holds a password, or the file can't be read.
    """
    found = {
        "url": asked.jdbc_url or environment.get("JMSJCA_JDBC_URL"),
        "user": asked.jdbc_user or environment.get("JMSJCA_JDBC_USER"),
        "password": environment.get("JMSJCA_JDBC_PASSWORD"),
    }
    if not found["url"]:
        raise ConfigurationError(
            "--format jdbc: there is no address of the database; name an Airflow connection by "
            "jdbc_conn_id of the operator, or say --jdbc-url jdbc:postgresql://host:5432/database"
        )
    if asked.jdbc_url and "password=" in asked.jdbc_url.lower():
        raise ConfigurationError(
            "--jdbc-url holds a password, which everybody on the machine sees; use jdbc_conn_id of the "
            "operator, or --jdbc-password-file"
        )
    if asked.jdbc_password_file:
        try:
            text = Path(asked.jdbc_password_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"--jdbc-password-file {asked.jdbc_password_file}: can't be read: {error}"
            ) from error
        found["password"] = text.rstrip("\r\n")
    return {name: value for name, value in found.items() if value}


if __name__ == "__main__":
    main()
