"""Groups of documents in a folder."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from tests.bench.documents import avro

_LARGEST = 3 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `group.json` says about a group.

    Attributes:
        body: `json`, `xml`, `csv` or `avro`; found by the ends of the files' names otherwise.
        schema: The fields; proposed from the first documents otherwise.
        table: `parquet`, `delta` or `jdbc`.
        root: Of XML documents; that of most documents otherwise.
        empty_as_null: As for `Batch.xml`.
        delimiter: As for `Batch.csv`.
        quote: As for `Batch.csv`.
        header: As for `Batch.csv`; each body is the header and one record.
        null: As for `Batch.csv`.
        timestamp_formats: As for `Batch.json`.
        most: At most so many documents.
    """

    body: str = ""
    schema: str = ""
    table: str = ""
    root: str = ""
    empty_as_null: bool = False
    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    null: str = ""
    timestamp_formats: tuple[str, ...] = ()
    most: int = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Documents of one producer, in order.

    Attributes:
        name: Of its folder; with a number for each schema of Avro.
        options: What is known about the documents.
        bodies: The documents.
        values: Of Avro, the values that the own reader found.
    """

    name: str
    options: Options
    bodies: list[bytes]
    values: list[object] = field(default_factory=list)


def groups(folder: Path, names: Sequence[str] = ()) -> Iterator[Group]:
    """Yield the groups of a folder; with names only those that begin so."""
    for place in sorted(each for each in folder.iterdir() if each.is_dir()):
        if names and not any(place.name.startswith(each) or each.startswith(place.name) for each in names):
            continue
        said = place / "group.json"
        found = json.loads(said.read_text()) if said.exists() else {}
        unknown = found.keys() - {each.name for each in fields(Options)}
        assert not unknown, f"{said}: {unknown}"
        files = sorted(each for each in place.iterdir() if each != said)
        kind = found.get("body") or _kind(files)
        options = Options(**found | {"body": kind})
        if kind == "avro":
            yield from _avro_groups(place.name, options, files)
            continue
        bodies = [body for file in files for body in _bodies(file, options)][: options.most]
        yield Group(name=place.name, options=options, bodies=bodies)


def _kind(files: list[Path]) -> str:
    ends = [each.suffix for each in files]
    kind = max(set(ends), key=ends.count).removeprefix(".")
    return "json" if kind == "jsonl" else kind


def _bodies(file: Path, options: Options) -> Iterator[bytes]:
    content = file.read_bytes()
    if options.body == "csv":
        yield from _records(content, options)
    elif file.suffix == ".jsonl":
        yield from (line.rstrip(b"\r\n") for line in content.split(b"\n") if line.strip())
    elif len(content) <= _LARGEST:
        yield content


def _records(content: bytes, options: Options) -> Iterator[bytes]:
    """Yield each record of a CSV file as it stands, below the header."""
    # Latin 1 has a character for each byte, so the bytes stay what they are.
    text = content.decode("latin-1")
    lines = io.StringIO(text, newline="").readlines()
    quoting = csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=options.delimiter, quotechar=options.quote or None, quoting=quoting)
    before, header = 0, ""
    csv.field_size_limit(1 << 30)
    for number, _ in enumerate(reader):
        record = "".join(lines[before : reader.line_num])
        before = reader.line_num
        if options.header and not number:
            header = record
        else:
            yield (header + record).encode("latin-1")


def _avro_groups(name: str, options: Options, files: list[Path]) -> Iterator[Group]:
    found: dict[str, tuple[list[bytes], list[object]]] = {}
    for file in files:
        container = avro.read(file.read_bytes())
        if not isinstance(container, str) and not container.is_of_records:
            container = "its values are no records"
        if isinstance(container, str):
            print(f"  left out {name}/{file.name}: {container}")
            continue
        bodies, values = found.setdefault(container.schema, ([], []))
        bodies += container.bodies
        values += container.values
    for number, (schema, (bodies, values)) in enumerate(
        sorted(found.items(), key=lambda each: -len(each[1][0]))
    ):
        if bodies:
            made = Options(body="avro", schema=schema, table=options.table)
            most = options.most
            yield Group(name=f"{name}-{number}", options=made, bodies=bodies[:most], values=values[:most])
