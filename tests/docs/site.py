"""What the site does with the numbers of the catalogue; an extension of Sphinx, named in `docs/conf.py`.

A reader is never left with a bare number. Docstrings lose their `Source:` lines, and a number on a page for
contributors is a link to its rule. A number that is left on a page for users is a warning, as which the
build fails.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

from tests.docs.conformance import catalogue
from tests.docs.prose import for_contributors, without_sources

CATALOGUE = "reference/catalogue"
RULES = catalogue(Path(__file__).resolve().parents[2])
"""Number -> name."""
_NUMBER = re.compile(r"(?<![\w`/.])[JPCWIR]\d{1,3}b?(?!\w)")
_SPAN = re.compile(r"(?<![`:\w])`([^`]+)`(?![`_\w])")  # code, which without this would lose its backslashes
_CODE = (nodes.literal, nodes.literal_block, nodes.reference, nodes.title)
_log = logging.getLogger(__name__)


def prepare(_app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Leave out the sources of a docstring, and keep what stands between backticks. Called by Sphinx."""
    text = without_sources("\n".join(lines))
    lines[:] = _SPAN.sub(r"``\1``", text).split("\n")


def mark_rules(app: Sphinx, page: nodes.document) -> None:
    """Give each row of the catalogue its number as an anchor. Called by Sphinx."""
    for row in page.findall(nodes.row) if app.env.docname == CATALOGUE else ():
        number = row.children[0].astext()
        if number in RULES:
            row["ids"].append(number.lower())


def link_numbers(app: Sphinx, page: nodes.document, docname: str) -> None:
    """Make links of the numbers of a page for contributors; warn of those elsewhere. Called by Sphinx."""
    if docname == CATALOGUE:
        return
    contributors = for_contributors(f"{docname}.md")
    for text in [each for each in page.findall(nodes.Text) if not _in_code(each)]:
        found = [match for match in _NUMBER.finditer(text) if match[0] in RULES]
        if found and contributors:
            text.parent.replace(text, _linked(app, text, found, docname))
        for match in () if contributors else found:
            _log.warning(
                "%s is a number of the catalogue, on a page for users", match[0], location=text.parent
            )


def _in_code(text: nodes.Text) -> bool:
    parent = text.parent
    while parent is not None:
        if isinstance(parent, _CODE):
            return True
        parent = parent.parent
    return False


def _linked(app: Sphinx, text: nodes.Text, found: list[re.Match[str]], docname: str) -> list[nodes.Node]:
    parts: list[nodes.Node] = []
    done = 0
    for match in found:
        number = match[0]
        uri = f"{app.builder.get_relative_uri(docname, CATALOGUE)}#{number.lower()}"
        parts += [
            nodes.Text(text[done : match.start()]),
            nodes.reference("", number, refuri=uri, internal=True, reftitle=RULES[number]),
        ]
        done = match.end()
    return [*parts, nodes.Text(text[done:])]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", prepare, priority=400)  # before napoleon
    app.connect("doctree-read", mark_rules)
    app.connect("doctree-resolved", link_numbers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
