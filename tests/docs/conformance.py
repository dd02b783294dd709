"""The conformance page and the catalogue beside it: what each number asks, how far it is met, what shows it.

Rules and names are written by hand in catalogue.md; verdicts and their reasons by hand in conformance.md,
whose other columns are made here from the catalogue and from the tests.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_jmsjca.core.options import OPTIONS

LETTERS = "JPCWIR"
VERDICTS = ("works", "partly", "not yet", "no meaning")
CONFIGURATION = (
    "J31-J122, J128-J148, J174-J182, J204-J207, J210-J212, C1-C14, P6-P10, P15, P16, "
    "W1-W3, W6, W10, W12-W26, W30, W31, W33, W39, W40, W42, W45, "
    "I3-I6, I9-I17, I19, I25, I26, I28-I30, I39, I45, I46, I48, I49, I51"
)
"""What is said about configuration: a `Source:` line of the package or an option gives each number."""
_PACKAGE = "airflow_provider_jmsjca"
_CATALOGUE = "docs/reference/catalogue.md"
_CONFORMANCE = "docs/reference/conformance.md"
_NUMBER = re.compile(r"\b([JPCWI])(\d{1,3}[a-z]?)\b(?:\s*(?:-|to)\s*\1?(\d{1,3})\b)?")
_IN_NAME = re.compile(r"(?:^|_)([jpcwi])(\d{1,3}[a-z]?)(?=_|$)")
_SOURCE = re.compile(r"^[ \t]*Source:(.*?)(?:\n[ \t]*\n|\Z)", re.MULTILINE | re.DOTALL)
_ROW = re.compile(rf"^\| ([{LETTERS}]\d+[a-z]?) \|(.*)\|$", re.MULTILINE)
_NOT_RUN = {"skip", "xfail"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How far a number is met, as the conformance page says by hand.

    Attributes:
        kind: One of `VERDICTS`.
        reason: What differs or lacks, or why there is nothing to meet; may be empty for `works`.
    """

    kind: str
    reason: str


def numbers_in(text: str) -> Iterator[str]:
    """Yield every catalogue number in a text; `J46-J64` is all of them."""
    for match in _NUMBER.finditer(text):
        letter, first, last = match.groups()
        if last is None or not first.isdigit():
            yield letter + first
        else:
            yield from (f"{letter}{number}" for number in range(int(first), int(last) + 1))


def catalogue(root: Path) -> dict[str, str]:
    """Return the name of each rule of catalogue.md, by its number."""
    return {number: cells[0] for number, cells in _rows(root / _CATALOGUE)}


def verdicts(root: Path) -> dict[str, Verdict]:
    """Return what the conformance page says of each number."""
    found = {}
    for number, cells in _rows(root / _CONFORMANCE):
        _, kind, reason, *_ = *cells, "", ""
        found[number] = Verdict(kind=kind, reason=reason)
    return found


def implemented(root: Path) -> dict[str, set[str]]:
    """Return the places in the package that give a number as their source."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((root / _PACKAGE).rglob("*.py")):
        place = path.relative_to(root / _PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for source in _SOURCE.finditer(ast.get_docstring(node) or ""):
                for number in numbers_in(source[1]):
                    found[number].add(f"{place} {getattr(node, 'name', '')}".strip())
    for option in OPTIONS:
        for number in numbers_in(option.source):
            found[number].add(f"option {option.name}")
    return found


def shown_by_tests(root: Path) -> dict[str, set[str]]:
    """Return the tests that name a number, in their own name or docstring, one by one.

    What a module or a class says counts for nothing, nor does a range, nor a test that isn't run or checks
    nothing.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for place, test in _tests(root):
        if _is_run(test) and _checks_something(test):
            for number in _named_by(test):
                found[number].add(place)
    return found


def gaps(root: Path) -> list[str]:
    """Return a sentence for each number that lacks its rule, verdict, reason or test."""
    rules, said, shown, where = catalogue(root), verdicts(root), shown_by_tests(root), implemented(root)
    lacking = [f"{number}: no row in {_CONFORMANCE}" for number in rules if number not in said]
    lacking += [f"{number}: no rule in {_CATALOGUE}" for number in said if number not in rules]
    lacking += [f"{number}: missing in {_CATALOGUE}, which has later ones" for number in _holes(rules)]
    for number, verdict in said.items():
        if verdict.kind not in VERDICTS:
            lacking.append(
                f"{number}: {verdict.kind!r} is no verdict, expected one of: {', '.join(VERDICTS)}"
            )
        elif verdict.kind != "works" and not verdict.reason:
            lacking.append(f"{number}: {verdict.kind} without a reason")
        elif verdict.kind in {"works", "partly"} and number not in shown:
            lacking.append(f"{number}: {verdict.kind}, but no test names it")
    for place, test in _tests(root):
        ranges = [match[0] for match in _NUMBER.finditer(ast.get_docstring(test) or "") if match[3]]
        lacking += [f"{place}: {text}: a test names its numbers one by one" for text in ranges]
        unknown = [number for number in _named_by(test) if number not in rules]
        lacking += [f"{place}: {number}: not in {_CATALOGUE}" for number in unknown]
    lacking += [
        f"{number}: no Source: line or option gives it"
        for number in numbers_in(CONFIGURATION)
        if number not in where
    ]
    lacking += [
        f"{number}: not in {_CATALOGUE}, given by {min(where[number])}" for number in {*where} - {*rules}
    ]
    return lacking


def render_conformance_page(root: Path) -> str:
    """Return the page with its verdicts and reasons as they are, and the columns beside them made anew."""
    rules, shown = catalogue(root), shown_by_tests(root)

    def row(match: re.Match[str]) -> str:
        number = match[1]
        _, kind, reason, *_ = *_cells(match[2]), "", ""
        tests = "<br>".join(f"`{place}`" for place in sorted(shown.get(number, ())))
        return f"| {number} | {rules.get(number, '')} | {kind} | {reason} | {tests} |".replace("|  |", "| |")

    return _ROW.sub(row, (root / _CONFORMANCE).read_text(encoding="utf-8"))


def explain(root: Path, number: str) -> str:
    """Return all that is known of a number: rule, verdict, places in the package, tests."""
    rules = dict(_rows(root / _CATALOGUE))
    if number not in rules:
        return f"{number}: not in {_CATALOGUE}"
    name, default, rule = rules[number]
    verdict = verdicts(root).get(number, Verdict(kind="no verdict", reason=""))
    return "\n".join(
        [
            f"{number} {name}: {rule}" + (f" Default: {default}." if default else ""),
            f"{verdict.kind}. {verdict.reason}".strip(),
            *(f"  package: {place}" for place in sorted(implemented(root).get(number, ()))),
            *(f"  test: {place}" for place in sorted(shown_by_tests(root).get(number, ()))),
        ]
    )


def _rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    for match in _ROW.finditer(path.read_text(encoding="utf-8")):
        yield match[1], _cells(match[2])


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("|")]


def _holes(numbers: dict[str, str]) -> Iterator[str]:
    for letter in LETTERS:
        present = {int(re.sub(r"\D", "", number)) for number in numbers if number[0] == letter}
        yield from (
            f"{letter}{missing}" for missing in range(1, max(present, default=0)) if missing not in present
        )


def _tests(root: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in sorted((root / "tests").rglob("test_*.py")):
        place = path.relative_to(root / "tests").as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield f"{place}::{node.name}", node


def _named_by(test: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    singly = [
        match[1] + match[2] for match in _NUMBER.finditer(ast.get_docstring(test) or "") if not match[3]
    ]
    return [letter.upper() + number for letter, number in _IN_NAME.findall(test.name.lower())] + singly


def _is_run(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    marks = {
        node.attr
        for each in test.decorator_list
        for node in ast.walk(each)
        if isinstance(node, ast.Attribute)
    }
    return not marks & _NOT_RUN


def _checks_something(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a test asserts something, expects an error, or waits for a condition."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name in {"raises", "warns", "until"}:
                return True
    return False
