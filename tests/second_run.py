"""Runs pytest, and tests with kills that failed once more, by themselves: `python -m tests.second_run [...]`.

What a kill leaves depends on the moment at which it strikes, and so on how busy the machine is. What fails
by itself too has failed. So has everything if any other test fails, or more than a few do. A test that passes
only in its second run is named in the last lines of the output: it is a bug to mend all the same.
`make test ONCE=1` is without a second run, for whoever looks for such tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

FAILURES: Final = "JMSJCA_TEST_FAILURES"
"""Names the file into which `tests/conftest.py` writes the ids of what failed, a line each."""
AT_MOST: Final = 3
"""How many tests may be run again."""
WITH_KILLS: Final = "tests/chaos/"
"""Where those are that may be."""
_SOME_FAILED: Final = 1

Run: TypeAlias = Callable[[Sequence[str]], tuple[int, list[str]]]
"""Runs pytest; returns its exit code and the ids of the tests that failed."""


def run(arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Run pytest in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "failures"
        command = [sys.executable, "-m", "pytest", *arguments]
        code = subprocess.run(command, env={**os.environ, FAILURES: str(file)}, check=False).returncode
        return code, file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def main(arguments: Sequence[str], run: Run = run, say: Callable[[str], object] = print) -> int:
    """Run pytest, and once more what failed if all of that are tests with kills, `AT_MOST` of them.

    Returns:
        The exit code: 0 only if each test has passed at last.
    """
    code, failed = run(arguments)
    if code != _SOME_FAILED or not 0 < len(failed) <= AT_MOST:
        return code
    if not all(test.startswith(WITH_KILLS) for test in failed):
        return code
    code, still = run(failed)
    say("Run twice; each is a bug to mend:")
    for test in failed:
        say(f"  {'failed twice' if test in still else 'passed then'}: {test}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
