"""Runs pytest, and what failed among the tests with kills once more: `python -m tests.second_run [...]`.

A test that kills a broker or a process depends on the moment at which that happens, and so on how busy the
machine is. Whatever else fails has failed. A test that passes only in its second run is named in the last
lines of the output: it is a bug to mend all the same.
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
"""Names the file into which `tests/conftest.py` writes what failed: a line each, `kills` or `once` first."""
_SOME_FAILED: Final = 1

Run: TypeAlias = Callable[[Sequence[str]], tuple[int, list[tuple[bool, str]]]]
"""Runs pytest; returns its exit code, and of each test that failed whether it kills and its id."""


def run(arguments: Sequence[str]) -> tuple[int, list[tuple[bool, str]]]:
    """Run pytest in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "failures"
        command = [sys.executable, "-m", "pytest", *arguments]
        code = subprocess.run(command, env={**os.environ, FAILURES: str(file)}, check=False).returncode
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return code, [(kind == "kills", test) for kind, _, test in (line.partition(" ") for line in lines)]


def main(arguments: Sequence[str], run: Run = run, say: Callable[[str], object] = print) -> int:
    """Run pytest, and once more what failed of the tests with kills, unless another failed too.

    Returns:
        The exit code: 0 only if each test has passed at last.
    """
    code, failed = run(arguments)
    again = [test for kills, test in failed if kills]
    if code != _SOME_FAILED or len(again) < len(failed) or not again:
        return code
    code, still = run(again)
    names = {test for _, test in still}
    say("Run twice, for they kill; each is a bug to mend:")
    for test in again:
        say(f"  {'failed twice' if test in names else 'passed then'}: {test}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
