"""The command; see the package."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.operating.schema_proposal import propose_schema
from airflow_provider_jmsjca.spark.job import Batch
from airflow_provider_jmsjca.spark.mapping import Mapped
from airflow_provider_jmsjca.spark.rejects import general_reason, numbered_rejects
from airflow_provider_jmsjca.spark.tables import delta
from airflow_provider_jmsjca.spool.attempts import Done, take_fence
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.rows import encode_body, manifest_messages
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Outgoing
from tests.bench.collector import seal
from tests.bench.documents import comparing, proposing, readings, tables
from tests.bench.documents.groups import Group, groups
from tests.bench.rival import new_queue
from tests.servers.activemq import ActiveMQClassic
from tests.servers.broker import USER
from tests.servers.folders import run_folder
from tests.servers.ports import HOST
from tests.servers.postgres import Postgres
from tests.spark.conftest import table_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BATCH = 20_000
_SAMPLE = 1_000
_SHOWN = 5
_READERS = {"json": readings.read_json, "csv": readings.read_csv}


@dataclass(slots=True)
class _Outcome:
    documents: int = 0
    rows: int = 0
    rejects: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    spark: SparkSession
    settings: ConnectionSettings
    postgres: Postgres
    folder: Path


def main() -> int:
    """Land all groups, print what differs, and return the exit code."""
    asked = argparse.ArgumentParser(prog="python -m tests.bench.documents", description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--group", nargs="*", default=[], help="the beginnings of names")
    asked.add_argument("--results", type=Path, help="a line of JSON for each group is added to this file")
    given = asked.parse_args()
    total: dict[str, _Outcome] = {}
    with tempfile.TemporaryDirectory(dir=_folder()) as name, ExitStack() as stack:
        broker, postgres = ActiveMQClassic(Path(name) / "broker"), Postgres(Path(name) / "postgres")
        for server in (broker, postgres):
            server.start()
            stack.callback(server.stop)
        spark = _session()
        stack.callback(spark.stop)
        place = _Place(spark=spark, settings=broker.settings(), postgres=postgres, folder=Path(name))
        for number, group in enumerate(groups(given.folder, given.group)):
            if given.group and not group.name.startswith(tuple(given.group)):
                continue
            began = time.monotonic()
            outcome = _Outcome(documents=len(group.bodies))
            try:
                _land(place, group, number, outcome)
            except ConfigurationError as error:
                if group.options.body != "avro":
                    raise
                # A schema of others may have types that Spark lacks.
                print(f"{group.name}: {outcome.documents:,} documents left out: {error}", flush=True)
                continue
            except (Exception, SystemExit):  # noqa: BLE001 - each group says what it found
                outcome.faults.append(traceback.format_exc()[-3_000:])
            seconds = time.monotonic() - began
            print(
                f"{group.name}: {outcome.documents:,} documents, {outcome.rows:,} rows, "
                f"{outcome.rejects.total():,} rejects, {len(outcome.faults)} faults, {seconds:.0f} s",
                flush=True,
            )
            for each in outcome.faults[:_SHOWN]:
                print(f"  FAULT {each}", flush=True)
            total[group.name] = outcome
            if given.results:
                line = {"group": group.name, "body": group.options.body, "documents": outcome.documents}
                line |= {"rows": outcome.rows, "rejects": outcome.rejects, "faults": outcome.faults}
                with given.results.open("a") as file:
                    file.write(json.dumps(line | {"seconds": seconds}) + "\n")
    every = total.values()
    print(
        f"{sum(each.documents for each in every):,} documents, {sum(each.rows for each in every):,} rows, "
        f"{sum(each.rejects.total() for each in every):,} rejects, "
        f"{sum(len(each.faults) for each in every)} faults"
    )
    for reason, count in sum((each.rejects for each in every), Counter[str]()).most_common():
        print(f"  {count:>7,}  {reason}")
    return int(any(each.faults for each in every))


def _folder() -> Path:
    run_folder().mkdir(parents=True, exist_ok=True)
    return run_folder()


def _session() -> SparkSession:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own
        from pyspark.sql import SparkSession  # noqa: PLC0415 - slow to import

        os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
        return (
            SparkSession.builder.master("local[2]")
            .config("spark.driver.memory", "3g")
            # Each group's plans are used once: the second compiler costs more than it saves.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.jars", table_jars())
            .config(map=delta.SESSION)
            .config("spark.databricks.delta.snapshotPartitions", "1")
            .config("spark.databricks.delta.properties.defaults.checkpointInterval", "1000")
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )


def _land(place: _Place, group: Group, number: int, outcome: _Outcome) -> None:
    messages = [_message(group, at, body) for at, body in enumerate(group.bodies)]
    group = _with_schema(group, messages)
    table = _table_of(group, number)
    for at, first in enumerate(range(0, len(messages), _BATCH)):
        part = slice(first, first + _BATCH)
        name = f"{group.name}-{at}"
        manifest = _collected(place, messages[part], name)
        _compare(
            place,
            replace(group, bodies=group.bodies[part], values=group.values[part]),
            manifest,
            table,
            outcome,
        )


def _message(group: Group, at: int, body: bytes) -> JmsMessage:
    """Return every other document that is UTF-8 as a text, and the others as bytes; all of Avro as bytes."""
    if group.options.body != "avro" and at % 2 == 0 and b"\0" not in body:
        try:
            return JmsMessage.text(body.decode())
        except UnicodeDecodeError:
            pass
    return JmsMessage.bytes(body)


def _with_schema(group: Group, messages: list[JmsMessage]) -> Group:
    options = group.options
    if options.body == "xml":
        schema, root = proposing.propose_xml(group.bodies, options)
        options = replace(options, root=root, schema=options.schema or schema)
    elif not options.schema and options.body == "json":
        proposal = propose_schema((str(at), each) for at, each in enumerate(messages[:_SAMPLE]))
        options = replace(options, schema=",\n".join(proposal.fields))
    elif not options.schema:
        options = replace(options, schema=proposing.propose_csv(group.bodies, options))
    return replace(group, options=options)


def _table_of(group: Group, number: int) -> str:
    is_flat = group.options.body == "csv" or "<" not in group.options.schema
    formats = ("parquet", "delta", "jdbc") if is_flat else ("parquet", "delta")
    if group.options.body == "avro":
        formats = formats[:2]
    if re.search(r"`[^`]*[ ,;{}()=][^`]*`", group.options.schema):
        formats = ("parquet",)  # Delta would need column mapping
    elif is_flat and "VARIANT" in group.options.schema:
        formats = formats[:2]
    return group.options.table or formats[number % len(formats)]


def _collected(place: _Place, messages: list[JmsMessage], name: str) -> Manifest:
    """Send messages to a queue of their own, and collect them from there."""
    queue = new_queue()
    connection = connect(place.settings)
    target = Destination.queue(queue)
    connection.send(Outgoing(destination=target, message=each) for each in messages)
    connection.close()
    manifest = seal(place.settings, queue, len(messages), place.folder / "spool", name)
    for sent, stored in itertools.zip_longest(messages, manifest_messages(manifest)):
        assert encode_body(sent) == encode_body(stored.message), "another body, or another order"
        assert sent.body_kind == stored.message.body_kind
    return manifest


def _compare(place: _Place, group: Group, manifest: Manifest, table: str, outcome: _Outcome) -> None:
    name = manifest.batch_id.replace("-", "_")
    path = str(place.folder / name) if table != "jdbc" else name
    url = f"jdbc:postgresql://{HOST}:{place.postgres.ports['postgres']}/postgres"
    database = {"url": url, "user": USER, "password": place.postgres.password}
    with Batch(manifest, take_fence(manifest.folder), shows_progress=False) as batch:
        mapped = _mapped(batch, place.spark, group)
        rejected = batch.reject(mapped.rejects)
        batch.write(mapped.rows, path, format=table, options=database if table == "jdbc" else None)
        schema = json.loads(mapped.rows.drop("_jms").schema.json())
    done = Done.read(manifest.folder)
    assert done is not None
    assert done.stored[path] + done.rejected == manifest.rows, (done.stored, done.rejected, manifest.rows)
    starts = dict(
        zip(
            (each.number for each in manifest.segments),
            itertools.accumulate((each.rows for each in manifest.segments), initial=0),
            strict=False,
        )
    )
    rejects = {
        starts[each.segment] + each.position: each.exception_message for _, each in numbered_rejects(manifest)
    }
    rows: dict[int, dict[str, Any]] = {}
    for row in _rows(place, table, path):
        at = starts[row.pop("jms_segment")] + row.pop("jms_position")
        if at in rows:
            outcome.faults.append(f"document {at} is there twice")
        rows[at] = row
    assert rejected == len(rejects)
    outcome.rows += len(rows)
    outcome.rejects.update(f"{group.options.body}: {general_reason(each)}" for each in rejects.values())
    from pyspark.sql.types import StructType  # noqa: PLC0415 - slow to import

    wanted = schema
    if group.options.body in {"json", "xml", "csv"}:
        wanted = json.loads(StructType.fromDDL(group.options.schema).json())
    for at, body in enumerate(group.bodies):
        outcome.faults += (
            f"{group.name} document {at}: {each}; body {body[:300]!r}"
            for each in _judged(group, at, wanted, rows.get(at), rejects.get(at))
        )


def _judged(
    group: Group, at: int, schema: dict[str, Any], row: dict[str, Any] | None, reason: str | None
) -> Iterator[str]:
    body = group.bodies[at]
    if (row is None) == (reason is None):
        yield f"in the table: {row is not None}, rejected: {reason}"
        return
    if group.options.body == "avro":
        reading = readings.read_avro(group.values[at], schema)
    elif group.options.body == "xml":
        is_text = at % 2 == 0 and b"\0" not in body and _is_utf8(body)
        reading = readings.read_xml(body, schema, group.options, is_text=is_text)
    else:
        reading = _READERS[group.options.body](body, schema, group.options)
    if reason is not None:
        if reading.row is not None:
            yield f"rejected, and nothing is wrong: {reason}"
        elif not comparing.is_true(reason, body, reading):
            yield f"a false reason: {reason}; the reader says {reading.syntax or reading.faults[:3]!r}"
    elif reading.row is None:
        yield f"stored, and should not be: {reading.syntax or reading.faults[:3]!r:.300}"
    else:
        for each in schema["fields"]:
            yield from comparing.differences(
                each["type"], reading.row.get(each["name"]), row[each["name"]], each["name"]
            )


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _mapped(batch: Batch, spark: SparkSession, group: Group) -> Mapped:
    options, messages = group.options, batch.messages(spark)
    match options.body:
        case "xml":
            return batch.xml(messages, options.schema, root=options.root, empty_as_null=options.empty_as_null)
        case "csv":
            return batch.csv(
                messages,
                options.schema,
                delimiter=options.delimiter,
                quote=options.quote,
                header=options.header,
                null=options.null,
            )
        case "avro":
            return batch.avro(messages, writer_schema=options.schema, allow=["variants"])
    return batch.json(messages, options.schema, timestamp_formats=options.timestamp_formats)


def _rows(place: _Place, table: str, path: str) -> Iterator[dict[str, Any]]:
    match table:
        case "delta":
            return tables.rows_of_delta(Path(path))
        case "jdbc":
            return tables.rows_of_postgres(place.postgres.url(driver="postgresql"), path)
    return tables.rows_of_parquet(Path(path))


if __name__ == "__main__":
    sys.exit(main())
