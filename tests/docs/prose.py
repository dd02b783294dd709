"""Which sentences of the user's pages are hard to read, as far as a program can see it.

The rules stand in CONTRIBUTING.md. Sentences have 25 words at most, cells of a table 15, and no page for
users cites a number of the catalogue. What proselint finds counts too. Left out are the pages for
contributors and generated ones.

The same holds for what a user reads elsewhere: the meaning of an option, which the connection form shows, the
docstrings of the public classes, and the texts of errors.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from markdown_it import MarkdownIt
from markdown_it.token import Token

import airflow_provider_jmsjca
from airflow_provider_jmsjca import _MODULES as PUBLIC
from airflow_provider_jmsjca.core.options import OPTIONS

MOST_WORDS = 25
"""Words in a sentence."""
MOST_CELL_WORDS = 15
"""Words in a cell of a table."""
CONTRIBUTORS = (
    "architecture.md",
    "contribute/",
    "reference/catalogue.md",
    "reference/contradictions.md",
    "reference/conformance.md",
)
GENERATED = ("reference/options.md", "reference/brokers.md")
LEFT_OUT = CONTRIBUTORS + GENERATED
PROSELINT = {
    "lexical_illusions",  # takes a link of the contents for a word said twice
    "misc.phrasal_adjectives",
    "misc.preferred_forms",
    "typography",  # straight quotes and three dots are what code has
}
"""Checks of proselint that don't fit pages with code in them."""
_SOURCE = re.compile(r"^Source: .*(?:\n.+)*|(?<=[.:;]) Source: .*$", re.MULTILINE)
"""In a docstring: where a behaviour comes from, in a paragraph or at the end of a line."""
_OF_THE_API = re.compile(
    r"^\.\. auto(?:class|function):: airflow_provider_jmsjca\.(\S+)\.(\w+)$", re.MULTILINE
)
_Documented: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_SENTENCE = re.compile(r"(?<=[.!?:;])[\")\]]*\s+(?=[\"(\[]*[A-Z0-9`])")
_FOUND = re.compile(r"\S+\.md:\d+:\d+: ")
_WORD = re.compile(r"[\w.@/:$*-]*\w[\w'-]*")
_ROLE = re.compile(r"\{\w+\}$")
NUMBER = re.compile(r"(?<![\w`/.-])(?:J|W|P|I|C)\d{1,3}(?![\w-])")


def for_contributors(page: str) -> bool:
    """Return whether a page, named by its path below `docs/`, is for contributors: it may cite numbers."""
    return page.startswith(CONTRIBUTORS)


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
            for found in NUMBER.findall(text):
                yield line, f"cites {found}, a number of the catalogue"
            cell = before in {"td_open", "th_open"}
            most, what = (MOST_CELL_WORDS, "cell") if cell else (MOST_WORDS, "sentence")
            for part in [text] if cell else _SENTENCE.split(text):
                if (count := len(_WORD.findall(part))) > most:
                    yield line, f"a {what} of {count} words, more than {most}: {part[:60]!r}"
        before = token.type


def without_sources(docstring: str) -> str:
    """Return a docstring without what says for contributors where a behaviour comes from."""
    return _SOURCE.sub("", docstring)


def text_faults(root: Path) -> list[str]:
    """Return what is hard to read in the package's own texts: options, public docstrings, errors."""
    package = Path(airflow_provider_jmsjca.__file__).parent
    return option_faults() + docstring_faults(package, documented(root)) + error_faults(package)


def documented(root: Path) -> dict[str, tuple[str, ...]]:
    """Return module -> names of all that is public or stands on the page of the API."""
    page = (root / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    names = {module: {*public} for module, public in PUBLIC.items()}
    for module, name in _OF_THE_API.findall(page):
        names.setdefault(module, set()).add(name)
    return {module: tuple(sorted(found)) for module, found in names.items()}


def option_faults() -> list[str]:
    """Return what is hard to read in what the form, the page and `explain` say of an option."""
    return [
        f"option {option.name}: {fault}"
        for option in OPTIONS
        for text in (option.meaning, option.status, option.shown_default or "")
        for _, fault in faults_in(text)
    ]


def docstring_faults(package: Path, public: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return what is hard to read in the docstrings of public names and their public members.

    A `Source:` line may cite numbers: the site leaves it out.

    Args:
        package: Folder of the package.
        public: Module -> its public names.
    """
    return [
        f"{module}.py: {name}: {fault}"
        for module, names in public.items()
        for name, docstring in _docstrings(_file(package, module), names)
        for _, fault in faults_in(without_sources(docstring))
    ]


def _file(package: Path, module: str) -> Path:
    path = package.joinpath(*module.split("."))
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"


def _docstrings(file: Path, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for node in _defining(file, names):
        yield node.name, ast.get_docstring(node) or ""
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, _DOCUMENTED) and not member.name.startswith("_"):
                yield f"{node.name}.{member.name}", ast.get_docstring(member) or ""


def _defining(file: Path, names: tuple[str, ...]) -> Iterator[_Documented]:
    """Yield the classes and functions of these names, from a module or from where its package has them."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, _DOCUMENTED) and node.name in names:
            yield node
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            package, _, module = node.module.partition(".")
            if (again := tuple(each.name for each in node.names if each.name in names)) and module:
                root = next(each for each in file.parents if each.name == package)
                yield from _defining(_file(root, module), again)


def error_faults(package: Path) -> list[str]:
    """Return the long sentences in the texts of errors: an error's first argument, or what says `expected`.

    What is filled in counts as one word.
    """
    return [
        f"{file.relative_to(package)}:{line}: {fault}"
        for file in sorted(package.rglob("*.py"))
        for line, text in _error_texts(ast.parse(file.read_text(encoding="utf-8")))
        for _, fault in faults_in(text)
    ]


def _error_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    seen: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, (*_DOCUMENTED, ast.Module)) and ast.get_docstring(node, clean=False) is not None:
            seen.add(node.body[0].value)  # type: ignore[attr-defined]  # it is an expression
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error"):
            for given in node.args[:1]:
                seen.update(ast.walk(given))
                yield given.lineno, _text(given)
        elif isinstance(node, ast.JoinedStr | ast.Constant) and node not in seen:
            seen.update(ast.walk(node))
            if "expected " in (text := _text(node)) and "CASE WHEN" not in text:  # that is SQL
                yield node.lineno, text


def _text(node: ast.AST) -> str:
    """Return a text as far as the code says it; `x` stands for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "`x`"


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
