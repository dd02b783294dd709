"""Changes the code in small ways, and says what no test notices: `python -m tests.mutants [module ...]`.

A module is a path below the package, such as `core/redelivery/tracker.py`, or a folder. Each change is made
in a copy of the repository, and the unit tests of the module's folder are run on it. What survives is printed
as a difference: a test is missing, or the change makes no difference to anybody. Of the second kind are the
arguments of `@dataclass`: nobody calls such a class by position, or writes to it. So are comparisons that can
be true in one direction only: of what was found with all there is, or of a word with another of two.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = "airflow_provider_jmsjca"
WORK: Final = ROOT / ".run" / "mutants"
TESTS: Final = {
    "core/redelivery": ("tests/unit/core/redelivery", "tests/unit/core/delivery/test_redelivery.py"),
    "core/delivery": ("tests/unit/core/delivery",),
    "core/selector": ("tests/unit/core/selector",),
}
"""The folders that may be asked for, and the tests that are to notice changes in them."""
_UNNOTICED: Final = (
    "core/ReplaceBinaryOperator_BitOr_.*",  # types in annotations, which nobody evaluates
)
_CONFIGURATION: Final = """\
[cosmic-ray]
module-path = "{module}"
timeout = 120.0
excluded-modules = []
test-command = "{python} -m pytest -q -x -p no:cacheprovider {tests}"
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = {unnoticed}
"""


def modules_of(asked: str) -> list[tuple[str, str]]:
    """Return the modules that a path stands for, each with its tests.

    Raises:
        SystemExit: No tests are known for the path, or nothing is there.
    """
    folder = next((each for each in TESTS if asked == each or asked.startswith(f"{each}/")), None)
    if folder is None:
        raise SystemExit(f"{asked}: expected a path in one of {', '.join(TESTS)}")
    path = ROOT / PACKAGE / asked
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise SystemExit(f"{asked}: nothing is there")
    names = [file.relative_to(ROOT).as_posix() for file in files if file.name != "__init__.py"]
    return [(name, " ".join(TESTS[folder])) for name in names]


def copied() -> Path:
    """Return a copy of the files that git knows, as they are in the working tree."""
    tree = WORK / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def survivors(tree: Path, module: str, tests: str) -> list[str]:
    """Try every change of a module; return those that no test notices, as differences."""
    configuration, session = tree / "mutants.toml", tree / "mutants.sqlite"
    session.unlink(missing_ok=True)
    configuration.write_text(
        _CONFIGURATION.format(module=module, tests=tests, python=sys.executable, unnoticed=list(_UNNOTICED)),
        encoding="utf-8",
    )
    tools = WORK / "venv" / "bin"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    for tool, *arguments in (
        ("cosmic-ray", "init", configuration, session),
        ("cr-filter-operators", session, configuration),
        ("cosmic-ray", "exec", configuration, session),
    ):
        command = [str(tools / tool), *map(str, arguments)]
        subprocess.run(command, cwd=tree, env=environment, check=True)
    with sqlite3.connect(session) as found:
        rows = found.execute("SELECT diff FROM work_results WHERE test_outcome = 'SURVIVED'").fetchall()
        tried = found.execute("SELECT count(*) FROM work_results WHERE test_outcome NOT NULL").fetchone()[0]
    print(f"{module}: {len(rows)} of {tried} changes survive", flush=True)
    return [row[0] for row in rows]


def main(asked: list[str]) -> None:
    """Print what survives."""
    tree = copied()
    for module, tests in [each for path in asked or list(TESTS) for each in modules_of(path)]:
        for difference in survivors(tree, module, tests):
            print(difference, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
