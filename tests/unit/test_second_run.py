"""A few failed tests get a second run, by themselves, and are named then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.second_run import AT_MOST, main, run

pytestmark = pytest.mark.unit


class Runs:
    """Answers each run of pytest with what was prepared for it."""

    def __init__(self, *answers: tuple[int, list[str]]) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []
        self.said: list[str] = []

    def main(self) -> int:
        def answer(arguments: Sequence[str]) -> tuple[int, list[str]]:
            self.asked.append(list(arguments))
            return self.answers.pop(0)

        return main(["tests/chaos"], run=answer, say=self.said.append)


def test_what_passes_is_run_once() -> None:
    runs = Runs((0, []))
    assert (runs.main(), runs.asked, runs.said) == (0, [["tests/chaos"]], [])


def test_where_many_fail_they_have_failed() -> None:
    runs = Runs((1, [f"a::test_{number}" for number in range(AT_MOST + 1)]))
    assert (runs.main(), len(runs.asked), runs.said) == (1, 1, [])


@pytest.mark.parametrize("answer", [(2, ["a::one"]), (1, [])], ids=["broken off", "failed without a test"])
def test_a_run_that_broke_off_stays_broken_off(answer: tuple[int, list[str]]) -> None:
    assert Runs(answer).main() == answer[0]


def test_what_failed_is_run_again_and_named() -> None:
    runs = Runs((1, ["a::one", "b::two"]), (1, ["b::two"]))
    assert runs.main() == 1
    assert runs.asked == [["tests/chaos"], ["a::one", "b::two"]]
    assert runs.said[1:] == ["  passed then: a::one", "  failed twice: b::two"]


def test_it_may_pass_then() -> None:
    runs = Runs((1, ["a::one"]), (0, []))
    assert runs.main() == 0
    assert runs.said[1:] == ["  passed then: a::one"]


def test_what_fails_is_told_by_pytest_itself() -> None:
    """One test of this very file fails on purpose, where it is asked for by name."""
    code, failed = run(
        ["-q", "-p", "no:cacheprovider", f"{__file__}::fails_on_purpose", "-o", "python_functions=fails_*"]
    )
    assert (code, failed) == (1, ["tests/unit/test_second_run.py::fails_on_purpose"])


def fails_on_purpose() -> None:
    raise AssertionError
