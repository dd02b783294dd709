"""No reader is left with a bare number of the catalogue."""

from __future__ import annotations

import io
import re
from pathlib import Path

from sphinx.application import Sphinx

from tests.docs.prose import without_sources
from tests.docs.site import RULES, prepare

RULE = RULES["J133"]
PAGES = {
    "index.md": "# Home\n\n```{toctree}\nguide\narchitecture\nreference/catalogue\n```\n",
    "guide.md": "# Guide\n\nIt is so.\n",
    "architecture.md": "# Architecture\n\nSee J133-J134, and `J1` of W33.\n",
    "reference/catalogue.md": "# Catalogue\n\n| Number | Name |\n|---|---|\n| J133 | One |\n| J134 | Two |\n",
}


def build(folder: Path, **changed: str) -> tuple[str, dict[str, str]]:
    """Return what Sphinx warns of, and the pages it makes."""
    for name, text in PAGES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(changed.get(Path(name).stem, text), encoding="utf-8")
    warnings = io.StringIO()
    Sphinx(
        srcdir=folder,
        confdir=None,
        outdir=folder / "site",
        doctreedir=folder / "trees",
        buildername="html",
        confoverrides={"extensions": ["myst_parser", "tests.docs.site"]},
        status=None,
        warning=warnings,
    ).build()
    made = (folder / "site").rglob("*.html")
    return warnings.getvalue(), {page.stem: page.read_text(encoding="utf-8") for page in made}


def test_a_number_on_a_page_for_contributors_leads_to_its_rule(tmp_path: Path) -> None:
    warnings, pages = build(tmp_path)
    assert warnings == ""
    links = re.findall(r'<a [^>]*href="reference/catalogue.html#(\w+)"[^>]*>(\w+)</a>', pages["architecture"])
    assert links == [("j133", "J133"), ("j134", "J134"), ("w33", "W33")]
    assert f'title="{RULE}"' in pages["architecture"]
    assert 'id="j133"' in pages["catalogue"]


def test_a_number_on_a_page_for_users_is_a_warning(tmp_path: Path) -> None:
    warnings, _ = build(
        tmp_path, guide="# Guide\n\n| a |\n|---|\n| as J134-J136 say |\n\n`J133`, X1, J999.\n"
    )
    assert re.findall(r"guide\.md.*WARNING: (\w+) is a number", warnings) == ["J134", "J136"]


def test_code_in_a_docstring_keeps_its_backslashes() -> None:
    lines = ["As `b'\\nid:'` and ``x`` say, of :class:`Y`.", "", "Source: J1."]
    prepare(None, "", "", None, None, lines)  # type: ignore[arg-type]  # it needs no Sphinx
    assert lines[0] == "As ``b'\\nid:'`` and ``x`` say, of :class:`Y`."


def test_a_docstring_loses_its_sources_and_nothing_else() -> None:
    docstring = (
        "Effect. Source: J1.\n\nArgs:\n    a: One. Source: J2.\n    b: Two.\n\nSource: J3,\nJ4.\n\nMore: J5."
    )
    assert without_sources(docstring) == "Effect.\n\nArgs:\n    a: One.\n    b: Two.\n\n\n\nMore: J5."
