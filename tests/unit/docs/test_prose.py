"""The check of prose finds what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.__main__ import ROOT
from tests.docs.prose import (
    LEFT_OUT,
    MOST_CELL_WORDS,
    MOST_WORDS,
    docstring_faults,
    error_faults,
    faults_in,
    prose_faults,
    text_faults,
)

WORD = "message "


def test_the_pages_for_users_are_easy_to_read() -> None:
    assert prose_faults(ROOT) == []


def test_options_docstrings_and_errors_are_easy_to_read() -> None:
    assert text_faults(ROOT) == []


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_there(name: str) -> None:
    assert (ROOT / "docs" / name).exists()


def test_a_long_sentence_is_found_where_it_stands() -> None:
    page = f"# {WORD * 30}\n\nShort.\n\nA {WORD * (MOST_WORDS - 1)}.\n\nOne more {WORD * (MOST_WORDS - 1)}.\n"
    assert [line for line, _ in faults_in(page)] == [7]


def test_sentences_end_where_readers_see_it() -> None:
    half = WORD * (MOST_WORDS - 2)
    assert list(faults_in(f"A {half}. `code` begins: {half}")) == []
    assert len(list(faults_in(f"A {half}, `code` goes on, {half}"))) == 1


def test_a_long_cell_is_found() -> None:
    page = f"| a | b |\n|---|---|\n| x | {WORD * MOST_CELL_WORDS} |\n| x | y {WORD * MOST_CELL_WORDS} |\n"
    assert [line for line, _ in faults_in(page)] == [4]


def test_a_number_of_the_catalogue_is_found_and_code_is_not() -> None:
    assert [fault for _, fault in faults_in("As J133 says.")] == ["cites J133, a number of the catalogue"]
    assert list(faults_in("`J133` and P4D and x-J1.")) == []


def test_a_link_by_a_role_counts_as_its_text() -> None:
    rest = WORD * (MOST_WORDS - 2)
    assert list(faults_in(f"{{airflow}}`two words <a/page.html>` {rest}.")) == []
    assert len(list(faults_in(f"{{airflow}}`three words here <a/page.html>` {rest}."))) == 1


def test_a_long_sentence_of_a_public_docstring_is_found_wherever_it_is_defined(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "room").mkdir(parents=True)
    long = f"A {WORD * MOST_WORDS}."
    (package / "room" / "__init__.py").write_text("from package.room.inner import Thing\n", encoding="utf-8")
    (package / "room" / "inner.py").write_text(
        f'class Thing:\n    """Short.\n\n    Source: J1, {long}\n    """\n\n'
        f'    def act(self):\n        """{long}"""\n\n    def _inner(self):\n        """{long}"""\n',
        encoding="utf-8",
    )
    (fault,) = docstring_faults(package, {"room": ("Thing",)})
    assert fault.startswith("room.py: Thing.act: a sentence of 26 words")


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ('raise OddError(f"{WORDS}")', [1]),
        ('raise OddError(f"{name}: {HALF}. A {HALF}")', []),
        ('faults.append("expected {WORDS}")', [1]),
        ('log("{WORDS}")', []),
        ('"""expected {WORDS}"""', []),
        ('raise OddError(f"short {name} " "{WORDS}")', [1]),
    ],
)
def test_a_long_sentence_of_an_error_is_found(tmp_path: Path, code: str, lines: list[int]) -> None:
    words, half = WORD * (MOST_WORDS + 1), WORD * (MOST_WORDS - 2)
    (tmp_path / "a.py").write_text(code.replace("{WORDS}", words).replace("{HALF}", half), encoding="utf-8")
    assert [int(fault.split(":")[1]) for fault in error_faults(tmp_path)] == lines
