"""Links lead somewhere. Sphinx checks those among the pages, and `make linkcheck` asks other servers."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from markdown_it import MarkdownIt

from tests.docs.__main__ import ROOT
from tests.docs.blocks import pages

# What docs/conf.py makes of {airflow}`text <path>`: the path of a page, and perhaps a place on it.
EXTERNAL_PAGE = re.compile(r"[a-z0-9][\w./-]*\.html(#[\w.-]+)?")
KNOWN_HOSTS = {"airflow.apache.org", "spark.apache.org"}
OUTSIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
"""Pages that aren't part of the site, so that Sphinx doesn't see their links."""


def links(page: Path) -> list[str]:
    """Return where a page links to, pictures too."""
    return [
        str(child.attrs[name])
        for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
        for child in token.children or ()
        for name in ("href", "src")
        if name in child.attrs
    ]


def anchors(page: Path) -> set[str]:
    """Return the places of a page that a link may name: its headings, as GitHub and Sphinx write them."""
    tokens = MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
    headings = [inline.content for opened, inline in pairwise(tokens) if opened.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: page.name)
def test_pages_outside_the_site_link_to_what_is_there(page: Path) -> None:
    lost = []
    for link in links(page):
        parts = urlsplit(link)
        target = (page.parent / parts.path) if parts.path else page
        if parts.scheme or (target.exists() and (not parts.fragment or parts.fragment in anchors(target))):
            continue
        lost.append(link)
    assert lost == []


def test_other_servers_are_known_and_asked_over_tls() -> None:
    found = {
        link
        for page in {*pages(ROOT), *OUTSIDE}
        for link in links(page)
        if urlsplit(link).scheme or link.startswith("//")
    }
    assert [link for link in found if urlsplit(link).scheme != "https"] == []
    assert {urlsplit(link).hostname for link in found} <= KNOWN_HOSTS


def test_pages_of_airflow_and_spark_are_named_by_their_paths() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    named = re.findall(r"\{(?:airflow|spark)\}`[^`<]+<([^`>]*)>`", text)
    assert len(named) == len(re.findall(r"\{(?:airflow|spark)\}", text)) > 10
    assert [path for path in named if not EXTERNAL_PAGE.fullmatch(path)] == []
    conf = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    assert {urlsplit(url).hostname for url in re.findall(r'"(https://[^"]+)"', conf)} == KNOWN_HOSTS
