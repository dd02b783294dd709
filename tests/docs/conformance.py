"""The conformance page: for each catalogue number where it is implemented and which tests show it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_jmsjca.core.options import OPTIONS

CONFIGURATION = (
    "J31-J122, J128-J148, J174-J182, J204-J207, J210-J212, C1-C14, P6-P10, P15, P16, "
    "W1-W3, W6, W10, W12-W26, W30, W31, W33, W39, W40, W42, W45, "
    "I3-I6, I9-I17, I19, I25, I26, I28-I30, I39, I45, I46, I48, I49, I51"
)
"""What is said about configuration: each number has to be implemented and to have a test."""
_PACKAGE = "airflow_provider_jmsjca"
_NUMBER = re.compile(r"\b([JPCWI])(\d{1,3}[a-z]?)\b(?:\s*(?:-|to)\s*\1?(\d{1,3})\b)?")
_IN_NAME = re.compile(r"(?:^|_)([jpcwi])(\d{1,3}[a-z]?)(?=_|$)")
_SOURCE = re.compile(r"^[ \t]*Source:(.*?)(?:\n[ \t]*\n|\Z)", re.MULTILINE | re.DOTALL)
_HEAD = """\
# Conformance

<!-- Made by `python -m tests.docs` from the Source: lines of the package and the tests. -->

Numbers are those of the feature catalogue: J the JMSJCA readme, W WebLogic message-driven beans, P ATG Patch
Bay, C Java CAPS, I the WBIA adapter for JMS.

| Number | Implemented in | Shown by |
|---|---|---|
"""


def numbers_in(text: str) -> Iterator[str]:
    """Yield every catalogue number in a text; `J46-J64` is all of them."""
    for match in _NUMBER.finditer(text):
        letter, first, last = match.groups()
        if last is None or not first.isdigit():
            yield letter + first
        else:
            yield from (f"{letter}{number}" for number in range(int(first), int(last) + 1))


def implemented(root: Path) -> dict[str, set[str]]:
    """Return the places in the package that give a number as their source."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((root / _PACKAGE).rglob("*.py")):
        place = path.relative_to(root / _PACKAGE).as_posix()
        for name, docstring in _docstrings(path):
            for source in _SOURCE.finditer(docstring):
                for number in numbers_in(source[1]):
                    found[number].add(f"{place} {name}".strip())
    for option in OPTIONS:
        for number in numbers_in(option.source):
            found[number].add(f"option {option.name}")
    return found


def shown_by_tests(root: Path) -> dict[str, set[str]]:
    """Return the tests that name a number in their own name or docstring; a whole module is no test."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((root / "tests").rglob("test_*.py")):
        place = path.relative_to(root / "tests").as_posix()
        for name, docstring in _docstrings(path):
            if not name:
                continue
            numbers = [letter.upper() + number for letter, number in _IN_NAME.findall(name.lower())]
            for number in (*numbers, *numbers_in(docstring)):
                found[number].add(f"{place} {name}".strip())
    return found


def gaps(root: Path) -> list[str]:
    """Return a sentence for each number of the configuration that lacks an implementation or a test."""
    where, shown = implemented(root), shown_by_tests(root)
    return [
        f"{number}: {what}"
        for number in numbers_in(CONFIGURATION)
        for what, found in (("no Source: line or option gives it", where), ("no test names it", shown))
        if number not in found
    ]


def render_conformance_page(root: Path) -> str:
    """Return the page as Markdown."""
    where, shown = implemented(root), shown_by_tests(root)
    rows = [
        f"| {number} | {_cell(where.get(number, set()))} | {_cell(shown.get(number, set()))} |\n"
        for number in sorted({*where, *shown}, key=_order)
    ]
    return _HEAD + "".join(rows)


def _cell(entries: set[str]) -> str:
    return "<br>".join(f"`{entry}`" for entry in sorted(entries)) or "none"


def _order(number: str) -> tuple[int, int, str]:
    digits = re.sub(r"\D", "", number)
    return "JWPCI".index(number[0]), int(digits), number


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module):
            yield "", ast.get_docstring(node) or ""
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, ast.get_docstring(node) or ""
