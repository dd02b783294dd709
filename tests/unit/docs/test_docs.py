"""The generated pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_jmsjca.core.options import OPTIONS
from airflow_provider_jmsjca.core.options_page import render_options_page
from tests.docs.__main__ import ROOT, main
from tests.docs.conformance import implemented, numbers_in, shown_by_tests

# Left out: J86, because no transport here speaks WebLogic's JNDI; J89, because nothing needs caching.
CONFIGURATION = (
    "J31-J80, J85, J87, J88, J90-J113, J128-J148, J178-J182, J204, J206, J207, J210-J212, "
    "C4, C12-C14, W13-W21, W24-W26, W30, W31, W33, I9, I16, I48, I49, P6-P10"
)


def test_ranges_of_numbers() -> None:
    assert list(numbers_in("J1, J5-J7; W2-4, P1 to P2 and J137b")) == [
        "J1", "J5", "J6", "J7", "W2", "W3", "W4", "P1", "P2", "J137b",
    ]  # fmt: skip


def test_every_number_of_the_configuration_is_implemented_and_tested() -> None:
    wanted = set(numbers_in(CONFIGURATION))
    assert wanted - implemented(ROOT).keys() == set()
    assert wanted - shown_by_tests(ROOT).keys() == set()


def test_the_options_page_has_every_option() -> None:
    page = render_options_page()
    for option in OPTIONS:
        assert f"| `{option.name}`" in page
        for _, spelling in option.spellings():
            assert f"`{spelling}`" in page


def test_check_finds_a_stale_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.docs.__main__.pages", lambda: {tmp_path / "a.md": "new"})
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
