"""Base of the readers of Avro schemas and JSON Schemas: paths, faults, limits and allowances."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

Found = tuple[DataType, bool]
"""A type, and whether its values may be NULL."""
LEVELS: Final = 100
"""Maximum number of nested types, references included."""
_MOST_PARTS: Final = 20_000
# Maximum number of characters of a faulty part, and of a path, in an error.
_SHOWN: Final = 40
_SHOWN_PATH: Final = 200


class Allowance(StrEnum):
    """A kind of part in a schema that is refused by default, and can be allowed."""

    VARIANTS = "variants"
    """Read a part without a Spark type as `VARIANT`: a choice, a recursion, a type of another file."""
    DEFAULTS = "defaults"
    """Read an Avro field with a default as nullable. The default isn't filled in."""
    ALIASES = "aliases"
    """Ignore aliases of an Avro field. Only the field's own name is read."""


class UntypedError(Exception):
    """A part has no Spark type other than `VARIANT`."""


class MalformedError(Exception):
    """A part isn't written as the schema language requires."""


class TooLargeError(Exception):
    """The schema has more parts than the limit."""


class SchemaReader:
    """Reads a schema of another language, and collects the faults.

    Args:
        allowed: Kinds of parts that aren't refused.
        levels: Maximum number of nested types; a deeper part is untyped.

    Attributes:
        faults: The refused parts, each with the path of the field.
    """

    def __init__(self, allowed: Collection[Allowance], levels: int = LEVELS) -> None:
        self.faults: list[str] = []
        self._allowed = frozenset(allowed)
        self._levels = levels
        self._level = 0
        self._parts = 0

    def columns(self, document: Any, wanted: str | None) -> StructType | None:
        """Return the fields of a body; `None` after a fault.

        Args:
            document: The content of the file.
            wanted: Name of the bodies' type, for a file with several types; `None`: the file's only type.

        Raises:
            TooLargeError: The schema has more parts than the limit. Each use of a type counts as a part.
        """
        raise NotImplementedError

    def read(self, schema: Any, path: str) -> Found:
        """Return the type of a part, and whether its value may be NULL; meaningless after a fault.

        Raises:
            TooLargeError: The schema has more parts than the limit. Each use of a type counts as a part.
        """
        self._count()
        self._level += 1
        try:
            if self._level > self._levels:
                return self._variant(path, f"more than {self._levels} nested types")
            return self._type(schema, path)
        except UntypedError as error:
            return self._variant(path, str(error))
        except MalformedError as error:
            self._refuse(path, str(error))
            return StringType(), True
        finally:
            self._level -= 1

    def _type(self, schema: Any, path: str) -> Found:
        """Return the type of a part.

        Raises:
            UntypedError: The part has no Spark type.
            MalformedError: The part isn't written as the schema language requires.
        """
        raise NotImplementedError

    def _count(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise TooLargeError(f"more than {_MOST_PARTS:,} types, each use of a type counted")

    def _variant(self, path: str, fault: str) -> Found:
        """Return `VARIANT` for a part without a Spark type; add a fault if that isn't allowed.

        Args:
            path: Path of the field; empty for the whole schema.
            fault: Why the part has no Spark type.
        """
        if Allowance.VARIANTS not in self._allowed or not path:
            way_out = f"; allow {Allowance.VARIANTS} to read it as VARIANT" if path else ""
            self._refuse(path, f"{fault}{way_out}")
        return VariantType(), True

    def _refuse(self, path: str, fault: str) -> None:
        place = f"field {path[:_SHOWN_PATH]!r}" if path else "the whole"
        self.faults.append(f"{place}: {fault}")

    def _struct(self, fields: Iterable[StructField]) -> StructType:
        """Return a struct with these fields.

        Raises:
            UntypedError: Two names differ only in case, which Spark doesn't distinguish.
        """
        found = list(fields)
        names = Counter(field.name.lower() for field in found)
        twice = sorted(name for name, count in names.items() if count > 1)
        if twice:
            raise UntypedError(f"two fields have the name {short(twice[0])}, apart from upper and lower case")
        return StructType(found)

    def _array(self, items: Any, path: str) -> ArrayType:
        return ArrayType(*self.read(items, f"{path}[]"))

    def _map(self, values: Any, path: str) -> MapType:
        return MapType(StringType(), *self.read(values, f"{path}[]"))


def short(part: Any) -> str:
    """Return the beginning of a part as JSON, for an error."""
    text = ""
    for piece in json.JSONEncoder().iterencode(part):
        text += piece[: _SHOWN + 1]
        if len(text) > _SHOWN:
            break
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
