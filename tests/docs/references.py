"""Which modules and classes the documentation and the option table name: each must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from airflow_provider_jmsjca.core.options import OPTIONS

PACKAGE = "airflow_provider_jmsjca"
# Spark's own names begin with `spark` too.
_REFERENCE = re.compile(
    r"`((?:core|engine|hooks|operators|sensors|spool|store|transports|triggers)(?:\.\w+)+)`"
)

_CLASS = re.compile(r"`([A-Z][a-z]\w*)(?:\.(\w+))?`")
"""A class on the page of the architecture, perhaps with one of its members."""
_OF_PYTHON = frozenset({"None", "Protocol"})


def reference_faults(root: Path) -> list[str]:
    """Return which modules are named, in backticks or by an option that acts there, and aren't there."""
    folder = root / PACKAGE
    faults = [
        f"core/options: {option.name} acts in {place!r}, which is no module"
        for option in OPTIONS
        for place in filter(None, option.acts.split(", "))
        if _found(folder, place) != ""
    ]
    for file in (*sorted(folder.rglob("*.py")), *sorted((root / "docs").rglob("*.md"))):
        faults += [
            f"{file.relative_to(root).as_posix()}: nothing is called `{name}`"
            for name in sorted(set(_REFERENCE.findall(file.read_text(encoding="utf-8"))))
            if not _is_there(folder, name)
        ]
    return faults + architecture_faults(root)


def architecture_faults(root: Path) -> list[str]:
    """Return the classes and members on the page of the architecture that the package doesn't define."""
    page = root / "docs" / "architecture.md"
    if not page.is_file():
        return []
    defined: dict[str, set[str]] = {}
    for file in (root / PACKAGE).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                defined.setdefault(node.name, set()).update(_members(node))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):  # a type alias
                defined.setdefault(node.target.id, set())
    return [
        f"{page.relative_to(root).as_posix()}: nothing is called `{name}{'.' if member else ''}{member}`"
        for name, member in sorted(set(_CLASS.findall(page.read_text(encoding="utf-8"))))
        if name not in _OF_PYTHON
        if name not in defined or (member and member not in defined[name])
    ]


def _members(node: ast.ClassDef) -> set[str]:
    """Return the names of methods and fields in the body of a class."""
    return {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)} | {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def _found(folder: Path, name: str) -> str:
    """Return what is left of a dotted name behind the module that it begins with."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        place = folder.joinpath(*parts[:end])
        if place.is_dir() or place.with_suffix(".py").is_file():
            return ".".join(parts[end:])
    return name


def _is_there(folder: Path, name: str) -> bool:
    left = _found(folder, name)
    if not left:
        return True
    module = folder.joinpath(*name.removesuffix(left).strip(".").split("."))
    file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    return re.search(rf"\b{left.partition('.')[0]}\b", file.read_text(encoding="utf-8")) is not None
