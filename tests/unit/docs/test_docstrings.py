"""The check of docstrings finds what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.__main__ import ROOT
from tests.docs.docstrings import docstrings_in, subject_faults
from tests.docs.references import PACKAGE

BAD = '''"""They are rooms."""

LIMIT = 3
"""So many messages."""


class Entry:
    """An entry.

    Attributes:
        position: Its place.
        name: Name of the entry.
            It goes on here.
    """

    def read(self):
        """The same as `take`.

        Returns:
            It, or nothing.
            It ends here.

        Raises:
            ssl.SSLError: It isn't trusted.
        """
'''


def fault(root: Path, source: str) -> list[str]:
    """Return the faults of a package with one module, whose source this is."""
    (root / PACKAGE).mkdir()
    (root / PACKAGE / "room.py").write_text(source, encoding="utf-8")
    return subject_faults(root)


def test_the_docstrings_name_what_they_speak_of() -> None:
    assert subject_faults(ROOT) == []


def test_each_bare_beginning_is_told_with_its_place(tmp_path: Path) -> None:
    told = sorted(fault(tmp_path, BAD), key=lambda each: int(each.split(":")[1]))
    end = "name what is meant"
    assert told == [
        f"{PACKAGE}/room.py:1: module: 'They are rooms.' begins with 'They': {end}",
        f"{PACKAGE}/room.py:4: LIMIT: 'So many messages.' begins with 'So many': {end}",
        f"{PACKAGE}/room.py:11: Entry: 'Its place.' begins with 'Its': {end}",
        f"{PACKAGE}/room.py:17: read: 'The same as `take`.' begins with 'The same': {end}",
        f"{PACKAGE}/room.py:20: read: 'It, or nothing.' begins with 'It': {end}",
        f"{PACKAGE}/room.py:24: read: \"It isn't trusted.\" begins with 'It': {end}",
    ]


@pytest.mark.parametrize("word", ["As there", "Whether it is"])
def test_what_points_elsewhere_is_told_too(tmp_path: Path, word: str) -> None:
    (told,) = fault(tmp_path, f'"""Rooms.\n\nArgs:\n    one: {word}.\n"""\n')
    assert f"begins with {word!r}" in told


@pytest.mark.parametrize("said", ["Items by name.", "Italics.", "A message: It is read.", "As `take`."])
def test_what_names_something_passes(tmp_path: Path, said: str) -> None:
    assert fault(tmp_path, f'"""{said}\n\nArgs:\n    one: {said}\n"""\n') == []


def test_every_docstring_is_looked_at() -> None:
    assert [name for _, name, _ in docstrings_in(BAD)] == ["module", "LIMIT", "Entry", "read"]
