"""Proposes fields for XML and CSV documents from a part of them, so that others may not fit."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from xml.etree import ElementTree as ET

from tests.bench.documents.groups import Options

_DEEPEST = 5
_MOST = 40
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(slots=True)
class _Shape:
    names: dict[str, _Shape] = field(default_factory=dict)
    attributes: dict[str, list[str]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    is_repeated: bool = False

    def add(self, element: ET.Element, depth: int) -> None:
        for name, value in element.items():
            if "XMLSchema-instance" not in name:
                self.attributes.setdefault(_local(name), []).append(value)
        if not len(element):
            self.texts.append(element.text or "")
        counts = Counter(_local(child.tag) for child in element)
        for child in element if depth < _DEEPEST else ():
            name = _local(child.tag)
            found = self.names.setdefault(name, _Shape())
            found.is_repeated |= counts[name] > 1
            found.add(child, depth + 1)

    def fields(self) -> list[str]:
        lowered: set[str] = set()
        found = []
        for name, texts in list(self.attributes.items())[:_MOST]:
            if _usable(f"_{name}", lowered) and name != "VALUE":
                found.append(f"`_{name}` {_type(texts)}")
        for name, shape in list(self.names.items())[:_MOST]:
            if not name.startswith("_") and _usable(name, lowered) and (kind := shape.kind()):
                found.append(f"`{name}` {kind}")
        return found

    def kind(self) -> str:
        if not self.names:
            text = _type(self.texts)
            fields = self.fields()
            if fields and "value" not in map(str.lower, self.attributes):
                fields.append(f"_VALUE {text}")  # a field _value can't stand beside it
            kind = f"STRUCT<{', '.join(_as_member(each) for each in fields)}>" if fields else text
        else:
            fields = self.fields()
            kind = f"STRUCT<{', '.join(_as_member(each) for each in fields)}>" if fields else ""
        return f"ARRAY<{kind}>" if kind and self.is_repeated else kind


def _as_member(column: str) -> str:
    name, _, kind = column.partition(" ")
    return f"{name}: {kind}"


def _usable(name: str, lowered: set[str]) -> bool:
    if not _NAME.fullmatch(name) or name.lower() in lowered or name.lower().startswith(("_jms", "jms_")):
        return False
    lowered.add(name.lower())
    return True


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def propose_xml(bodies: Sequence[bytes], options: Options) -> tuple[str, str]:
    """Return fields and the most frequent root."""
    parsed = []
    for body in bodies:
        try:
            parsed.append(ET.fromstring(body))  # noqa: S314 - expat of today expands nothing without bound
        except (ET.ParseError, ValueError, LookupError):
            continue
    ((root, _),) = Counter(_local(each.tag) for each in parsed).most_common(1)
    root = options.root or root
    shape = _Shape()
    for each in parsed[: max(5, len(parsed) // 2)]:
        if _local(each.tag) == root:
            shape.add(each, 0)
    return ", ".join(shape.fields()) or "`_none` STRING", root


def propose_csv(bodies: Sequence[bytes], options: Options) -> str:
    """Return fields."""
    columns: dict[str, list[str]] = {}
    for body in bodies[:: max(1, len(bodies) // 500)]:
        lines = body.decode("utf-8-sig", "replace").splitlines(keepends=True)
        rows = list(csv.reader(lines, delimiter=options.delimiter, quotechar=options.quote or None))
        names = rows[0] if options.header else [f"c{at}" for at in range(len(rows[0]))]
        for name, value in zip(names, rows[-1], strict=False):
            columns.setdefault(name, []).append("" if value == options.null else value)
    lowered: set[str] = set()
    found = [
        f"`{name}` {_type([each for each in values if each])}"
        for name, values in list(columns.items())[:_MOST]
        if not options.header or _usable(name, lowered)
    ]
    return ", ".join(found)


def _type(texts: Iterable[str]) -> str:
    found = [each.strip() for each in texts]
    if not found:
        return "STRING"
    if all(re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", each) for each in found):
        return "BIGINT" if any(len(each) > 9 for each in found) else "INT"
    if all(re.fullmatch(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]+)?", each) for each in found):
        scale = max(-Decimal(each).as_tuple().exponent for each in found)
        return f"DECIMAL({18 + scale},{scale})" if scale < 12 else "DOUBLE"
    if all(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", each) for each in found):
        return "DOUBLE"
    if all(each in {"true", "false"} for each in found):
        return "BOOLEAN"
    if all(re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", each) for each in found):
        return "DATE"
    if all(re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|[+-][0-9:]+)?", each) for each in found):
        return "TIMESTAMP"
    return "STRING"
