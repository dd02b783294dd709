"""Reads tables back without Spark: Parquet by PyArrow, Delta's log by hand, PostgreSQL by its driver."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq

Row = dict[str, Any]


def rows_of_parquet(table: Path) -> Iterator[Row]:
    """Yield the rows of a folder of Parquet files."""
    for file in sorted(table.rglob("*.parquet")):
        yield from _rows(file)


def rows_of_delta(table: Path) -> Iterator[Row]:
    """Yield the rows of the newest version of a Delta table that has no checkpoint."""
    files: set[str] = set()
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                files.add(action["add"]["path"])
            if "remove" in action:
                files.discard(action["remove"]["path"])
    for name in sorted(files):
        yield from _rows(table / name)


def rows_of_postgres(url: str, table: str) -> Iterator[Row]:
    """Yield the rows of a table."""
    with psycopg.connect(url) as database:
        found = database.execute(f'SELECT * FROM "{table}"')  # noqa: S608 - our own name
        names = [each.name for each in found.description or ()]
        for row in found:
            yield dict(zip(names, row, strict=True))


def _rows(file: Path) -> Iterator[Row]:
    for batch in pq.ParquetFile(file).iter_batches(batch_size=1_000):
        yield from batch.to_pylist(maps_as_pydicts="strict")


def variant(value: Any) -> Any:
    """Return the value of a VARIANT, as PyArrow reads it: a struct of byte strings, and of typed parts."""
    return None if value is None else _shredded(value, _Variant(value["metadata"]))


def _shredded(part: dict[str, Any], names: _Variant) -> Any:
    """Return a value of which Spark has stored some parts in columns of their own."""
    typed, rest = part.get("typed_value"), part["value"]
    if isinstance(typed, dict):
        members = {name: _shredded(each, names) for name, each in typed.items() if _is_there(each)}
        return members | (names.read(rest, 0) if rest is not None else {})
    if isinstance(typed, list):
        return [_shredded(each, names) for each in typed]
    return names.read(rest, 0) if typed is None else typed


def _is_there(part: dict[str, Any] | None) -> bool:
    return part is not None and (part["value"] is not None or part.get("typed_value") is not None)


class _Variant:
    """As the specification of Parquet has it."""

    def __init__(self, metadata: bytes) -> None:
        size = (metadata[0] >> 6) + 1
        count = int.from_bytes(metadata[1 : 1 + size], "little")
        places = [
            int.from_bytes(metadata[1 + size * at : 1 + size * (at + 1)], "little")
            for at in range(1, count + 2)
        ]
        start = 1 + size * (count + 2)
        self.names = [metadata[start + places[at] : start + places[at + 1]].decode() for at in range(count)]

    def read(self, data: bytes, at: int) -> Any:
        kind, rest = data[at] & 3, data[at] >> 2
        if kind == 1:
            return data[at + 1 : at + 1 + rest].decode()
        if kind == 2:
            return self._object(data, at, rest)
        if kind == 3:
            return self._array(data, at, rest)
        match rest:
            case 0:
                return None
            case 1 | 2:
                return rest == 1
            case 3 | 4 | 5 | 6:
                return int.from_bytes(data[at + 1 : at + 1 + (1 << (rest - 3))], "little", signed=True)
            case 7:
                return struct.unpack_from("<d", data, at + 1)[0]
            case 8 | 9 | 10:
                size = 4 << (rest - 8)
                number = int.from_bytes(data[at + 2 : at + 2 + size], "little", signed=True)
                return Decimal(number).scaleb(-data[at + 1])
            case 16:
                size = int.from_bytes(data[at + 1 : at + 5], "little")
                return data[at + 5 : at + 5 + size].decode()
        raise NotImplementedError(f"primitive {rest}")

    def _object(self, data: bytes, at: int, header: int) -> dict[str, Any]:
        offset_size, id_size, large = (header & 3) + 1, ((header >> 2) & 3) + 1, header >> 4 & 1
        at += 1
        count = int.from_bytes(data[at : at + (4 if large else 1)], "little")
        at += 4 if large else 1
        offsets = at + count * id_size
        start = offsets + (count + 1) * offset_size
        found = {}
        for number in range(count):
            name = int.from_bytes(data[at + number * id_size : at + (number + 1) * id_size], "little")
            place = offsets + number * offset_size
            found[self.names[name]] = self.read(
                data, start + int.from_bytes(data[place : place + offset_size], "little")
            )
        return found

    def _array(self, data: bytes, at: int, header: int) -> list[Any]:
        offset_size, large = (header & 3) + 1, header >> 2 & 1
        at += 1
        count = int.from_bytes(data[at : at + (4 if large else 1)], "little")
        offsets = at + (4 if large else 1)
        start = offsets + (count + 1) * offset_size
        found = []
        for number in range(count):
            place = offsets + number * offset_size
            found.append(self.read(data, start + int.from_bytes(data[place : place + offset_size], "little")))
        return found
