"""The check of names finds what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.__main__ import ROOT
from tests.docs.names import ACCEPTED_PAIRS, PACKAGE, banned_in, differ_by_one, name_faults, reference_faults


def test_the_code_has_good_names() -> None:
    assert name_faults(ROOT) == []


@pytest.mark.parametrize("name", ["Fates", "_patience", "StintOf", "likeness", "ends", "hand_outs", "utils"])
def test_moods_and_riddles_are_refused(name: str) -> None:
    assert banned_in(name)


@pytest.mark.parametrize("name", ["settlement", "ends_by_time", "resolve_levels", "RunState", "impatience"])
def test_words_of_the_field_pass(name: str) -> None:
    assert not banned_in(name)


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ("arrival", "arrivals", True),
        ("delivery", "deliverx", True),
        ("filling", "killing", True),
        ("pool", "spool", True),
        ("delivery", "delivered", False),
        ("same", "same", False),
        ("abcd", "acbd", False),
    ],
)
def test_one_letter(one: str, other: str, *, differ: bool) -> None:
    assert differ_by_one(one, other) is differ
    assert differ_by_one(other, one) is differ


def test_each_fault_is_named(tmp_path: Path) -> None:
    room = tmp_path / PACKAGE / "room"
    room.mkdir(parents=True)
    (room / "arrival.py").write_text("class Patience:\n    def fates(self): ...\n", encoding="utf-8")
    (room / "arrivals.py").write_text('"""About a batch."""\nclass Unit: ...\n', encoding="utf-8")
    (room / "other.py").write_text("Unit: TypeAlias = int\nclass _Own: ...\n", encoding="utf-8")
    (room / "third.py").write_text("class _Own: ...\n", encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text(
        "| word | meaning |\n|---|---|\n| batch | some |\n| limbo | a shelf |\n", encoding="utf-8"
    )
    assert [fault.split(" ", 2)[:2] for fault in name_faults(tmp_path)] == [
        ["room/arrival.py:", "'Patience'"],
        ["room/arrival.py:", "'fates'"],
        ["room/arrivals.py", "and"],
        ["modules", "'arrival'"],
        ["docs/glossary.md:", "'limbo'"],
    ]


@pytest.mark.parametrize("kind", ["class", "def"])
def test_a_name_with_a_letter_more_is_told(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text("")
    for name, module in (("fit", "sizes"), ("fits", "values"), ("other", "third"), ("_other", "fourth")):
        (folder / f"{module}.py").write_text(f"{kind} {name}(): ...\n")
    assert name_faults(tmp_path) == ["sizes.py and values.py: 'fit' and 'fits' differ by one letter"]


def test_what_is_accepted_is_there() -> None:
    modules = {file.stem for file in (ROOT / PACKAGE).rglob("*.py")}
    assert [pair for pair in ACCEPTED_PAIRS if not modules.issuperset(pair)] == []


def test_a_module_that_is_named_and_not_there_is_told(tmp_path: Path) -> None:
    package, docs = tmp_path / PACKAGE, tmp_path / "docs"
    for room in ("core", "engine", "hooks", "operators", "transports"):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").touch()
    docs.mkdir()
    (package / "engine" / "moving.py").write_text("class Losses: ...\n")
    (package / "core" / "url.py").write_text(
        '"""As `engine.moving.Losses`, `engine.moving` and `core.gone.Url`."""\n'
    )
    (docs / "page.md").write_text("`engine.moving.Gains` and `engine.moving`, `core.url`.\n")
    found = [fault for fault in reference_faults(tmp_path) if not fault.startswith("core/options")]
    assert found == [
        f"{PACKAGE}/core/url.py: nothing is called `core.gone.Url`",
        "docs/page.md: nothing is called `engine.moving.Gains`",
    ]


def test_the_folders_of_the_unit_tests_are_those_of_the_package() -> None:
    tests = ROOT / "tests" / "unit"
    of_tests = {"bench", "docs", "servers", "core/activation/descriptors"}
    folders = {file.parent.relative_to(tests).as_posix() for file in tests.rglob("*.py")} - of_tests
    assert [each for each in sorted(folders) if not (ROOT / PACKAGE / each).is_dir()] == []


def test_an_option_that_acts_nowhere_is_told(tmp_path: Path) -> None:
    assert "core/options: poll_quantity acts in 'core.delivery.in_hand', which is no module" in (
        reference_faults(tmp_path)
    )
    assert not [fault for fault in reference_faults(ROOT) if fault.startswith("core/options")]


def test_a_function_that_is_there_twice_is_told(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text("")
    for name in ("one", "two"):
        (tmp_path / PACKAGE / name).mkdir(parents=True)
        (tmp_path / PACKAGE / name / f"{name}s.py").write_text("def take(): ...\ndef _own(): ...\n")
    assert name_faults(tmp_path) == [
        "one/ones.py and two/twos.py: each defines 'take'(): one name doesn't mean two things"
    ]
