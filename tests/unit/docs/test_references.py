"""The check of references finds modules that do not exist."""

from __future__ import annotations

from pathlib import Path

from tests.docs.__main__ import ROOT
from tests.docs.references import PACKAGE, architecture_faults, reference_faults


def test_a_module_that_is_named_and_not_there_is_told(tmp_path: Path) -> None:
    package, docs = tmp_path / PACKAGE, tmp_path / "docs"
    for room in ("core", "engine", "hooks", "operators", "transports"):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").touch()
    docs.mkdir()
    (package / "engine" / "moving.py").write_text("class FailedDeadLetterSends: ...\n")
    (package / "core" / "url.py").write_text(
        '"""As `engine.moving.FailedDeadLetterSends`, `engine.moving` and `core.gone.Url`."""\n'
    )
    (docs / "page.md").write_text("`engine.moving.Gains` and `engine.moving`, `core.url`.\n")
    found = [fault for fault in reference_faults(tmp_path) if not fault.startswith("core/options")]
    assert found == [
        f"{PACKAGE}/core/url.py: nothing is called `core.gone.Url`",
        "docs/page.md: nothing is called `engine.moving.Gains`",
    ]


def test_a_class_on_the_architecture_page_that_is_not_there_is_told(tmp_path: Path) -> None:
    package, docs = tmp_path / PACKAGE, tmp_path / "docs"
    package.mkdir()
    docs.mkdir()
    (package / "moving.py").write_text("class Gains:\n    most: int\n\n    def count(self): ...\n")
    (docs / "architecture.md").write_text(
        "`Gains`, `Gains.count`, `Gains.most`, `Gains.total`, `Losses`, `GET`\n"
    )
    assert architecture_faults(tmp_path) == [
        "docs/architecture.md: nothing is called `Gains.total`",
        "docs/architecture.md: nothing is called `Losses`",
    ]


def test_the_folders_of_the_unit_tests_are_those_of_the_package() -> None:
    tests = ROOT / "tests" / "unit"
    of_tests = {"bench", "docs", "servers", "migrate/descriptors"}
    folders = {file.parent.relative_to(tests).as_posix() for file in tests.rglob("*.py")} - of_tests
    assert [each for each in sorted(folders) if not (ROOT / PACKAGE / each).is_dir()] == []


def test_an_option_that_acts_nowhere_is_told(tmp_path: Path) -> None:
    assert "core/options: poll_quantity acts in 'core.delivery.pending', which is no module" in (
        reference_faults(tmp_path)
    )
    assert not [fault for fault in reference_faults(ROOT) if fault.startswith("core/options")]
