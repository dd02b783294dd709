"""A few failed tests with kills get a second run, by themselves, and are named then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.second_run import AT_MOST, main, run

pytestmark = pytest.mark.unit
ONE, TWO = "tests/chaos/test_a.py::one", "tests/chaos/test_b.py::two"


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
    runs = Runs((1, [f"{ONE}_{number}" for number in range(AT_MOST + 1)]))
    assert (runs.main(), len(runs.asked), runs.said) == (1, 1, [])


@pytest.mark.parametrize("answer", [(2, [ONE]), (1, [])], ids=["broken off", "failed without a test"])
def test_a_run_that_broke_off_stays_broken_off(answer: tuple[int, list[str]]) -> None:
    assert Runs(answer).main() == answer[0]


def test_what_failed_is_run_again_and_named() -> None:
    runs = Runs((1, [ONE, TWO]), (1, [TWO]))
    assert runs.main() == 1
    assert runs.asked == [["tests/chaos"], [ONE, TWO]]
    assert runs.said[1:] == [f"  passed then: {ONE}", f"  failed twice: {TWO}"]


@pytest.mark.parametrize("other", ["tests/unit/test_a.py::one", "tests/broker/test_a.py::one"])
def test_a_test_without_kills_has_failed(other: str) -> None:
    runs = Runs((1, [ONE, other]))
    assert (runs.main(), len(runs.asked), runs.said) == (1, 1, [])


def test_it_may_pass_then() -> None:
    runs = Runs((1, [ONE]), (0, []))
    assert runs.main() == 0
    assert runs.said[1:] == [f"  passed then: {ONE}"]


def test_what_fails_is_told_by_pytest_itself() -> None:
    """One test of this very file fails on purpose, where it is asked for by name."""
    code, failed = run(
        ["-q", "-p", "no:cacheprovider", f"{__file__}::fails_on_purpose", "-o", "python_functions=fails_*"]
    )
    assert (code, failed) == (1, ["tests/unit/test_second_run.py::fails_on_purpose"])


def fails_on_purpose() -> None:
    raise AssertionError
