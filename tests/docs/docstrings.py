"""Which docstrings begin with a word whose meaning a reader has to guess.

A docstring stands alone: its first line, and each entry of its sections, names what it speaks of.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.references import PACKAGE

_BARE = re.compile(
    r"(?:\A|^(?:Returns|Yields):\n {4}|^ {4}[\w.*]+: )"
    r"(?P<entry>(?P<word>It|They|Its|Their|So (?:many|much|long)|As (?:above|below|there)|The same|"
    r"Whether it is)\b.*)",
    re.MULTILINE,
)
"""The beginning of a docstring, of what is returned or of another section's entry, if it names nothing."""


def subject_faults(root: Path) -> list[str]:
    """Return the first lines and entries, below a repository's root, that don't name what they speak of."""
    return [
        f"{file.relative_to(root).as_posix()}:{line + docstring.count(chr(10), 0, found.start('entry'))}: "
        f"{name}: {found['entry']!r} begins with {found['word']!r}: name what is meant"
        for file in sorted((root / PACKAGE).rglob("*.py"))
        for line, name, docstring in docstrings_in(file.read_text(encoding="utf-8"))
        for found in _BARE.finditer(docstring)
    ]


def docstrings_in(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and text of each docstring: of modules, classes, functions and what is assigned."""
    for node in ast.walk(ast.parse(source)):
        name = getattr(node, "name", "module")
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, name, inspect.cleandoc(text)
                case (
                    ast.Assign(targets=[ast.Name(id=assigned)]) | ast.AnnAssign(target=ast.Name(id=assigned))
                ):
                    name = assigned
