"""Which sentences of the user's pages are hard to read, as far as a program can see it.

The rules stand in CONTRIBUTING.md. Sentences have 25 words at most, cells of a table 15, and no page for
users cites a number of the catalogue. What proselint finds counts too. Left out are the pages for
contributors and generated ones.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

MOST_WORDS = 25
"""Words in a sentence."""
MOST_CELL_WORDS = 15
"""Words in a cell of a table."""
LEFT_OUT = (
    "architecture.md",  # contributors
    "contribute/",
    "reference/catalogue.md",
    "reference/contradictions.md",
    "reference/conformance.md",  # generated
    "reference/options.md",
    "reference/brokers.md",
)
PROSELINT = {
    "lexical_illusions",  # takes a link of the contents for a word said twice
    "misc.phrasal_adjectives",
    "misc.preferred_forms",
    "typography",  # straight quotes and three dots are what code has
}
"""Checks of proselint that don't fit pages with code in them."""
_SENTENCE = re.compile(r"(?<=[.!?:;])[\")\]]*\s+(?=[\"(\[]*[A-Z0-9`])")
_FOUND = re.compile(r"\S+\.md:\d+:\d+: ")
_WORD = re.compile(r"[\w.@/:$*-]*\w[\w'-]*")
_ROLE = re.compile(r"\{\w+\}$")
_NUMBER = re.compile(r"(?<![\w`/.-])(?:J|W|P|I|C)\d{1,3}(?![\w-])")


def prose_faults(root: Path) -> list[str]:
    """Return the hard sentences of README.md and the pages below `docs/`, each with file and line."""
    docs = root / "docs"
    pages = [
        page
        for page in (*root.glob("README.md"), *sorted(docs.rglob("*.md")))
        if page.parent == root or not page.relative_to(docs).as_posix().startswith(LEFT_OUT)
    ]
    faults = [
        f"{page.relative_to(root)}:{line}: {fault}"
        for page in pages
        for line, fault in faults_in(page.read_text(encoding="utf-8"))
    ]
    return faults + (_proselint(pages) if pages else [])


def _proselint(pages: list[Path]) -> list[str]:
    """Return what proselint finds in these pages, one line each."""
    command = [Path(sys.executable).with_name("proselint"), "check", "--output-format", "compact", *pages]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    if found.returncode not in {0, 1}:
        raise RuntimeError(f"proselint failed: {found.stderr}")
    return [
        line
        for line in found.stdout.splitlines()
        if _FOUND.match(line) and not any(f": {check}" in line for check in PROSELINT)
    ]


def faults_in(page: str) -> Iterator[tuple[int, str]]:
    """Yield line and fault for each long sentence, long cell and number of the catalogue in a page."""
    line, before = 0, ""
    for token in MarkdownIt("commonmark").enable("table").parse(page):
        line = token.map[0] + 1 if token.map else line
        if token.type == "inline" and before != "heading_open":
            text = _spoken(token)
            for found in _NUMBER.findall(text):
                yield line, f"cites {found}, a number of the catalogue"
            cell = before in {"td_open", "th_open"}
            most, what = (MOST_CELL_WORDS, "cell") if cell else (MOST_WORDS, "sentence")
            for part in [text] if cell else _SENTENCE.split(text):
                if (count := len(_WORD.findall(part))) > most:
                    yield line, f"a {what} of {count} words, more than {most}: {part[:60]!r}"
        before = token.type


def _spoken(token: Token) -> str:
    """Return what a reader reads: the text without marks, a piece of code as one word."""
    said: list[str] = []
    for child in token.children or ():
        if child.type == "text":
            said.append(child.content)
        elif child.type == "code_inline":
            role = _ROLE.search(said[-1]) if said else None
            if role is not None:  # a link: {airflow}`text <path>`
                said[-1] = said[-1][: role.start()]
                said.append(child.content.partition(" <")[0])
            else:
                said.append(f"`{'code' if ' ' in child.content else child.content}`")
        elif child.type in {"softbreak", "hardbreak"}:
            said.append(" ")
    return "".join(said)
