"""The check of prose finds what it is for."""

from __future__ import annotations

import pytest

from tests.docs.__main__ import ROOT
from tests.docs.prose import LEFT_OUT, MOST_CELL_WORDS, MOST_WORDS, faults_in, prose_faults

WORD = "message "


def test_the_pages_for_users_are_easy_to_read() -> None:
    assert prose_faults(ROOT) == []


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
