"""Text of others in logs, errors and JSON."""

from __future__ import annotations

import json
import logging
import re
import shlex
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import airflow_provider_jmsjca
from airflow_provider_jmsjca import ConfigurationError, SpoolError
from airflow_provider_jmsjca.escaping import escaped, escaped_json, escaped_lines, shell_arguments
from airflow_provider_jmsjca.logs import safe_logger

STEERING = ["Cc", "Cf", "Cs", "Zl", "Zp"]
"""Control, format (such as the direction of writing), surrogates, line and paragraph separators."""
FORGED = "ID:1\n2026-01-01 ERROR forged\r\x1b[2J\x9b31m\u202e\u2028\u2029\ud800\x7f\x00"
SHOWN = r"ID:1\n2026-01-01 ERROR forged\r\x1b[2J\x9b31m\u202e\u2028\u2029\ud800\x7f\x00"


def steers(text: str) -> bool:
    return any(unicodedata.category(each) in STEERING for each in text)


def test_what_is_not_printable_is_shown_as_an_escape() -> None:
    assert escaped(FORGED) == SHOWN
    assert escaped("größe ☃ 注文 😀 C:\\temp") == "größe ☃ 注文 😀 C:\\temp"
    assert escaped("\U000e0041\ufeff\u200b") == r"\U000e0041\ufeff\u200b"
    assert escaped(ValueError("a\nb")) == r"a\nb"
    assert escaped_lines("a\tb\nc\r\n") == "a\\tb\nc\\r\n"


@given(st.text())
def test_no_text_steers_a_terminal(text: str) -> None:
    assert not steers(escaped(text))
    assert escaped(escaped(text)) == escaped(text)


@given(st.dictionaries(st.text(), st.text()))
def test_json_stays_the_same_document(document: dict[str, str]) -> None:
    shown = escaped_json(json.dumps(document, ensure_ascii=False, indent=1))
    assert json.loads(shown) == document
    assert not steers(shown.replace("\n", ""))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("orders.dlq", "ID:broker-1:4711"), "orders.dlq ID:broker-1:4711"),
        (("q", "1; reboot"), "q '1; reboot'"),
        (("q", "$(reboot)`reboot`"), "q '$(reboot)`reboot`'"),
        (("q", "'; reboot #"), "q ''\"'\"'; reboot #'"),
        (("q", "--rejects"), "-- q --rejects"),
        (("-q", ""), "-- -q ''"),
    ],
)
def test_arguments_of_a_command_are_quoted(words: tuple[str, ...], shown: str) -> None:
    assert shell_arguments(*words) == shown


@given(st.lists(st.text(), max_size=3))
def test_a_shell_passes_arguments_unchanged(words: list[str]) -> None:
    shown = shlex.split(shell_arguments(*words))
    assert (shown[1:] if shown[:1] == ["--"] else shown) == words


def test_the_text_of_an_error_is_one_line() -> None:
    assert str(SpoolError(FORGED)) == SHOWN
    error = ConfigurationError(["a\nb", "c"])
    assert str(error) == r"a\nb; c"
    assert error.faults == ("a\nb", "c")


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += self.format(record).split("\n")


@pytest.fixture
def lines() -> Iterator[list[str]]:
    handler = _Lines()
    logger = safe_logger("airflow_provider_jmsjca.a_test")
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


def test_a_record_is_one_line(lines: list[str]) -> None:
    logger = safe_logger("airflow_provider_jmsjca.a_test")
    logger.warning("message %s, %r, %d%%, %.1f: %s", FORGED, FORGED, 5, 0.5, ValueError(FORGED))
    logger.warning("message %(id)s", {"id": FORGED})
    logger.warning(FORGED)
    first, second, third = lines
    assert first == f"WARNING message {SHOWN}, {FORGED!r}, 5%, 0.5: {SHOWN}"
    assert (second, third) == (f"WARNING message {SHOWN}", f"WARNING {SHOWN}")


def test_no_line_of_a_traceback_begins_like_a_record(lines: list[str]) -> None:
    try:
        int(FORGED)
    except ValueError as error:
        error.add_note(FORGED)
        safe_logger("airflow_provider_jmsjca.a_test").exception("It failed")
    assert lines[:2] == ["ERROR It failed", "Traceback (most recent call last):"]
    assert all(line.startswith("  ") for line in lines[2:])
    assert not any(map(steers, lines))


def test_every_module_of_the_package_logs_so() -> None:
    package = Path(airflow_provider_jmsjca.__file__).parent
    own = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"getLogger\(|structlog", path.read_text())
    ]
    assert own == ["logs.py"]
