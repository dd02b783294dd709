"""The generated pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_jmsjca.core.options import OPTIONS
from airflow_provider_jmsjca.core.options_page import render_options_page
from tests.docs.__main__ import ROOT, main
from tests.docs.conformance import gaps, numbers_in


def test_ranges_of_numbers() -> None:
    assert list(numbers_in("J1, J5-J7; W2-4, P1 to P2 and J137b")) == [
        "J1", "J5", "J6", "J7", "W2", "W3", "W4", "P1", "P2", "J137b",
    ]  # fmt: skip


def test_every_number_of_the_configuration_is_implemented_and_tested() -> None:
    assert gaps(ROOT) == []


def test_a_number_that_nothing_names_is_a_gap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.docs.conformance.CONFIGURATION", "J901-J904")
    (tmp_path / "airflow_provider_jmsjca").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "airflow_provider_jmsjca" / "a.py").write_text('"""A.\n\nSource: J901, J903-J904.\n"""\n')
    (tmp_path / "tests" / "test_a.py").write_text('def test_x_j901():\n    """J904."""\n')
    assert gaps(tmp_path) == [
        "J902: no Source: line or option gives it",
        "J902: no test names it",
        "J903: no test names it",
    ]
    monkeypatch.setattr("tests.docs.__main__.pages", dict)
    monkeypatch.setattr("tests.docs.__main__.ROOT", tmp_path)
    assert main(["--check"]) == 1


def test_the_options_page_has_every_option() -> None:
    page = render_options_page()
    for option in OPTIONS:
        assert f"| `{option.name}`" in page
        for _, spelling in option.spellings():
            assert f"`{spelling}`" in page


def test_check_finds_a_stale_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.docs.__main__.pages", lambda: {tmp_path / "a.md": "new"})
    monkeypatch.setattr("tests.docs.__main__.gaps", lambda _: [])
    monkeypatch.setattr("tests.docs.__main__.ROOT", tmp_path)
    (tmp_path / "a.md").write_text("old", encoding="utf-8")
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert (tmp_path / "a.md").read_text(encoding="utf-8") == "new"
    assert main(["--check"]) == 0


def test_the_index_reaches_every_page() -> None:
    folder = ROOT / "docs"
    linked = set(re.findall(r"\]\(([^)#]+\.md)", (folder / "index.md").read_text(encoding="utf-8")))
    assert linked == {page.relative_to(folder).as_posix() for page in folder.rglob("*.md")} - {"index.md"}
