"""Only tests with kills get a second run, and are named then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.second_run import main, run

pytestmark = pytest.mark.unit


class Runs:
    """Answers each run of pytest with what was prepared for it."""

    def __init__(self, *answers: tuple[int, list[tuple[bool, str]]]) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []
        self.said: list[str] = []

    def main(self) -> int:
        def answer(arguments: Sequence[str]) -> tuple[int, list[tuple[bool, str]]]:
            self.asked.append(list(arguments))
            return self.answers.pop(0)

        return main(["tests/chaos"], run=answer, say=self.said.append)


def test_what_passes_is_run_once() -> None:
    runs = Runs((0, []))
    assert (runs.main(), runs.asked, runs.said) == (0, [["tests/chaos"]], [])


def test_a_failure_without_kills_stays_one() -> None:
    runs = Runs((1, [(True, "a::kill"), (False, "b::plain")]))
    assert (runs.main(), len(runs.asked), runs.said) == (1, 1, [])


def test_a_run_that_broke_off_stays_broken_off() -> None:
    assert Runs((2, [(True, "a::kill")])).main() == 2


def test_tests_with_kills_are_run_again_and_named() -> None:
    runs = Runs((1, [(True, "a::kill"), (True, "b::kill")]), (1, [(True, "b::kill")]))
    assert runs.main() == 1
    assert runs.asked == [["tests/chaos"], ["a::kill", "b::kill"]]
    assert runs.said[1:] == ["  passed then: a::kill", "  failed twice: b::kill"]


def test_they_may_pass_then() -> None:
    runs = Runs((1, [(True, "a::kill")]), (0, []))
    assert runs.main() == 0
    assert runs.said[1:] == ["  passed then: a::kill"]


def test_what_fails_is_told_by_pytest_itself() -> None:
    """One test of this very file fails on purpose, where it is asked for by name."""
    code, failed = run(
        ["-q", "-p", "no:cacheprovider", f"{__file__}::fails_on_purpose", "-o", "python_functions=fails_*"]
    )
    assert (code, failed) == (1, [(False, "tests/unit/test_second_run.py::fails_on_purpose")])


def fails_on_purpose() -> None:
    raise AssertionError
