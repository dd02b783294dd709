"""The generated pages."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from airflow_provider_jmsjca import __version__
from airflow_provider_jmsjca.core.options import OPTIONS, OPTIONS_BY_NAME
from airflow_provider_jmsjca.engine.send_markers import SEND_MARKERS
from tests.conftest import TIERS
from tests.docs.__main__ import ROOT, main, pages
from tests.docs.cli_page import render_cli_page
from tests.docs.conformance import catalogue, explain, gaps, numbers_in, render_conformance_page
from tests.docs.options_page import TASKS, render_options_page
from tests.docs.screenshots import MOST_BYTES, PAGE_SHOTS, SHOTS


def test_ranges_of_numbers() -> None:
    assert list(numbers_in("J1, J5-J7; W2-4, P1 to P2 and J137b")) == [
        "J1", "J5", "J6", "J7", "W2", "W3", "W4", "P1", "P2", "J137b",
    ]  # fmt: skip


def test_every_number_has_a_rule_a_verdict_and_what_the_verdict_needs() -> None:
    assert gaps(ROOT) == []


def test_the_catalogue_has_all_numbers() -> None:
    rules = catalogue(ROOT)
    counted = {letter: sum(number[0] == letter for number in rules) for letter in "JPCWIR"}
    assert counted == {"J": 214, "P": 21, "C": 14, "W": 46, "I": 54, "R": 7}  # J137b beside J1 to J213
    assert all(rules.values())


class Repository:
    """A small repository: rules, verdicts and one test module."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "docs" / "reference").mkdir(parents=True)
        (root / "airflow_provider_jmsjca").mkdir()
        (root / "tests").mkdir()
        self.write()

    def write(self, verdict: str = "works", reason: str = "", test: str = "", source: str = "J1") -> None:
        pages = self.root / "docs" / "reference"
        (pages / "catalogue.md").write_text("| J1 | Name | | Rule. |\n", encoding="utf-8")
        (pages / "conformance.md").write_text(
            f"Head\n\n| J1 | | {verdict} | {reason} | |\n", encoding="utf-8"
        )
        code = f'"""A.\n\nSource: {source}.\n"""\n'
        (self.root / "airflow_provider_jmsjca" / "a.py").write_text(code, encoding="utf-8")
        (self.root / "tests" / "test_a.py").write_text(test, encoding="utf-8")

    def gaps(self, **written: str) -> list[str]:
        self.write(**written)
        return gaps(self.root)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setattr("tests.docs.conformance.CONFIGURATION", "J1")
    monkeypatch.setattr("tests.docs.conformance.OPTIONS", [])
    return Repository(tmp_path)


@pytest.mark.parametrize(
    "test",
    [
        "def test_x_j1():\n    assert x()\n",
        'def test_x():\n    """J1: so it is."""\n    assert x()\n',
        'async def test_x():\n    """More. J1."""\n    await until(x)\n',
        "class TestX:\n    def test_x_j1(self):\n        with pytest.raises(E):\n            x()\n",
    ],
)
def test_a_test_that_names_a_number_shows_it(repository: Repository, test: str) -> None:
    assert repository.gaps(test=test) == []


@pytest.mark.parametrize(
    "test",
    [
        "",
        '"""J1."""\ndef test_x():\n    assert x()\n',
        'class TestX:\n    """J1."""\n    def test_x(self):\n        assert x()\n',
        'def helper():\n    """J1."""\n    assert x()\n',
        "def test_x():\n    # J1\n    assert x()\n",
        "def test_x_j1():\n    x()\n",
        '@pytest.mark.skip(reason="later")\ndef test_x_j1():\n    assert x()\n',
        "@pytest.mark.xfail\ndef test_x_j1():\n    assert x()\n",
    ],
    ids=["none", "module", "class", "no test", "comment", "checks nothing", "skipped", "expected to fail"],
)
@pytest.mark.parametrize("verdict", ["works", "partly"])
def test_what_works_needs_a_test_of_its_own(repository: Repository, verdict: str, test: str) -> None:
    assert repository.gaps(verdict=verdict, reason="Some.", test=test) == [
        f"J1: {verdict}, but no test names it"
    ]


def test_a_range_shows_nothing(repository: Repository) -> None:
    assert repository.gaps(test='def test_x():\n    """J1-J3."""\n    assert x()\n') == [
        "J1: works, but no test names it",
        "test_a.py::test_x: J1-J3: a test names its numbers one by one",
    ]


@pytest.mark.parametrize(("verdict", "reason"), [("not yet", "No."), ("no meaning", "There is none.")])
def test_what_is_not_there_needs_a_reason_and_no_test(
    repository: Repository, verdict: str, reason: str
) -> None:
    assert repository.gaps(verdict=verdict, reason=reason) == []
    assert repository.gaps(verdict=verdict) == [f"J1: {verdict} without a reason"]


def test_unknown_verdicts_and_numbers_are_gaps(repository: Repository) -> None:
    test = "def test_x_j1_j9():\n    assert x()\n"
    assert repository.gaps(verdict="perhaps", test=test, source="J1, J8") == [
        "J1: 'perhaps' is no verdict, expected one of: works, partly, not yet, no meaning",
        "test_a.py::test_x_j1_j9: J9: not in docs/reference/catalogue.md",
        "J8: not in docs/reference/catalogue.md, given by a.py",
    ]
    assert repository.gaps(verdict="not yet", reason="No.", source="JMS 2.0") == [
        "J1: no Source: line or option gives it"
    ]


def test_both_pages_have_the_same_numbers_without_holes(repository: Repository) -> None:
    page = repository.root / "docs" / "reference" / "catalogue.md"
    page.write_text("| J2 | Name | | Rule. |\n", encoding="utf-8")
    assert gaps(repository.root)[:3] == [
        "J2: no row in docs/reference/conformance.md",
        "J1: no rule in docs/reference/catalogue.md",
        "J1: missing in docs/reference/catalogue.md, which has later ones",
    ]


def test_verdicts_stay_and_the_rest_is_filled_in(repository: Repository) -> None:
    repository.write(verdict="partly", reason="Half.", test="def test_x_j1():\n    assert x()\n")
    page = "Head\n\n| J1 | Name | partly | Half. | `test_a.py::test_x_j1` |\n"
    assert render_conformance_page(repository.root) == page
    (repository.root / "docs" / "reference" / "conformance.md").write_text(page, encoding="utf-8")
    assert render_conformance_page(repository.root) == page
    assert explain(repository.root, "J1").splitlines() == [
        "J1 Name: Rule.",
        "partly. Half.",
        "  package: a.py",
        "  test: test_a.py::test_x_j1",
    ]
    assert explain(repository.root, "J2") == "J2: not in docs/reference/catalogue.md"


def test_the_check_fails_on_a_gap(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.__main__.pages", dict)
    monkeypatch.setattr("tests.docs.__main__.reference_faults", lambda _: [])
    monkeypatch.setattr("tests.docs.__main__.text_faults", lambda _: [])
    monkeypatch.setattr("tests.docs.__main__.ROOT", repository.root)
    assert main(["--check"]) == 1
    repository.write(verdict="not yet", reason="No.")
    assert main(["--check"]) == 0


def test_the_options_page_has_every_option() -> None:
    page = render_options_page()
    assert {name for names in TASKS.values() for name in names} <= {*OPTIONS_BY_NAME}
    assert not re.search(r"\b[JPCWIR]\d{1,3}\b", page)
    for option in OPTIONS:
        assert f"| `{option.name}`" in page
        for _, spelling in option.spellings():
            assert f"`{spelling}`" in page


def test_the_page_of_the_command_line_has_commands_with_their_arguments() -> None:
    page = render_cli_page()
    assert "\n## `airflow jms explain`\n" in page
    assert "\n### `airflow jms spool prune`\n" in page
    assert "\n- `--conn-id CONN_ID`: the Airflow connection" in page
    assert "\n- `--dry-run`: change nothing\n" in page
    assert "\\[" not in page


def test_every_picture_is_drawn_from_its_source_and_shown() -> None:
    folder = ROOT / "docs" / "pictures"
    drawn = {path for path in pages() if path.suffix == ".svg"}
    assert drawn == {*folder.glob("*.svg")}
    shown = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert [path.name for path in drawn if f"pictures/{path.name}" not in shown] == []
    assert all("<svg" in pages()[path] for path in drawn)


def test_every_screenshot_is_small_and_shown_and_can_be_taken_anew() -> None:
    taken = {*(ROOT / "docs" / "pictures").glob("*.png")}
    assert {path.name for path in taken} == {*SHOTS, *PAGE_SHOTS}
    assert [path.name for path in taken if path.stat().st_size > MOST_BYTES] == []
    shown = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert [path.name for path in taken if f"pictures/{path.name}" not in shown] == []


def test_check_finds_a_stale_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.docs.__main__.pages", lambda: {tmp_path / "a.md": "new"})
    monkeypatch.setattr("tests.docs.__main__.gaps", lambda _: [])
    monkeypatch.setattr("tests.docs.__main__.reference_faults", lambda _: [])
    monkeypatch.setattr("tests.docs.__main__.text_faults", lambda _: [])
    monkeypatch.setattr("tests.docs.__main__.ROOT", tmp_path)
    (tmp_path / "a.md").write_text("old", encoding="utf-8")
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert (tmp_path / "a.md").read_text(encoding="utf-8") == "new"
    assert main(["--check"]) == 0


def test_the_index_reaches_every_page() -> None:
    """Each page is linked from the index, or from the index of a section that it links."""
    folder = ROOT / "docs"

    def links(page: Path) -> set[str]:
        found = re.findall(r"\]\(([^)#:]+\.md)", page.read_text(encoding="utf-8"))
        return {os.path.normpath(page.parent.relative_to(folder) / each) for each in found}

    linked = links(folder / "index.md")
    for section in [each for each in linked if each.endswith("/index.md")]:
        linked |= links(folder / section)
    assert linked - {"index.md"} == {page.relative_to(folder).as_posix() for page in folder.rglob("*.md")} - {
        "index.md"
    }


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__
    found = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    assert found[1] == __version__


def test_what_contributors_are_sent_to_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = {*re.findall(r"`([\w.]+/[\w./-]*\w)/?`", text), *re.findall(r"\]\(([^)]+)\)", text)}
    tiers = {f"tests/{tier}" for tier in TIERS}
    assert tiers <= named
    places = (ROOT, ROOT / "airflow_provider_jmsjca", ROOT / "tests" / "unit")
    lost = [path for path in named - tiers if not any((place / path).exists() for place in places)]
    assert lost == []


def test_the_changelog_has_short_lines_by_kind() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    kinds = re.split(r"^### (.+)\n", text, flags=re.MULTILINE)
    assert "\n- " not in kinds[0]
    assert {*kinds[1::2]} <= {"Added", "Changed", "Fixed", "Not yet"}
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert [line for line in lines if len(line) > 180] == []
    assert len(lines) == len({*lines})


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/how-to/delays.md"])
def test_pages_name_the_queue_of_send_markers_whose_rights_they_ask_for(page: str) -> None:
    assert f"`{SEND_MARKERS.name}`" in (ROOT / page).read_text(encoding="utf-8")
