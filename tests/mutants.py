"""Changes the code in small ways, and says what no test notices: `python -m tests.mutants [module ...]`.

A module is a path below the package, such as `core/redelivery/tracker.py`, or a folder. Each change is made
in a copy of the repository, and the unit tests of the module's folder that come past the place are run on it,
the quickest first, until one fails. A process that has collected the tests forks a child for each change,
which gives the functions their changed code. Where that is noticed by no test, or the change is outside of
functions, another child imports the changed module anew. Most changes cost less than a second.

What survives is printed as a difference: a test is missing, or the change makes no difference to anybody.
Of the second kind, for example, are `<=` after a branch for `==`, a count from -1 where counts begin at 1,
and a field's first value that another method sets before anything reads it. What is left of that kind stands
in `docs/contribute/proofs.md`, with the reasons.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import json
import math
import os
import resource
import select
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = "airflow_provider_jmsjca"
WORK: Final = ROOT / ".run" / "mutants"
TESTS: Final = {
    "core/redelivery": ("tests/unit/core/redelivery", "tests/unit/core/delivery/test_redelivery.py"),
    "core/delivery": ("tests/unit/core/delivery",),
    "core/selector": ("tests/unit/core/selector",),
}
"""The folders that may be asked for, and the tests that are to notice changes in them."""
_MISTAKEN: Final = {
    "ReplaceBinaryOperator": "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Div Mod_FloorDiv Pow_Mul BitAnd_BitOr",
    "ReplaceComparisonOperator": "Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is "
    "Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt",
}
"""An operator becomes its opposite or its neighbour: a test that notices this notices any other in its place.

`|` stays, since it stands in annotations, which nobody evaluates.
"""
_UNNOTICED: Final = [f"core/{name}_(?!{'|'.join(each.split())})" for name, each in _MISTAKEN.items()]
_CONFIGURATION: Final = """\
[cosmic-ray]
module-path = "{module}"
timeout = 600.0
excluded-modules = []
test-command = "sh -c 'echo > {asked}; exit $(cat {answer})'"
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = {unnoticed}
"""
_SECONDS: Final = 60
"""Of a core: longer than the tests of a folder take."""
_BYTES: Final = 4 << 30

hypothesis.settings.register_profile(
    "mutants",
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)


@dataclass(kw_only=True)
class Noticing:
    """A plugin of pytest: which tests come past which lines of a module, and how long they take."""

    module: str
    while_imported: set[int] = field(default_factory=set)
    lines: dict[str, set[int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def follow(self, lines: set[int]) -> None:
        def in_module(frame: FrameType, _event: str, _value: object) -> Callable[..., Any]:
            lines.add(frame.f_lineno)
            return in_module

        def anywhere(frame: FrameType, _event: str, _value: object) -> Callable[..., Any] | None:
            return in_module if frame.f_code.co_filename == self.module else None

        sys.settrace(anywhere)
        threading.settrace(anywhere)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.follow(self.lines.setdefault(item.nodeid, set()))
        began = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - began
            self.follow(self.while_imported)


@dataclass(kw_only=True)
class Server:
    """A plugin of pytest: when all is collected, a child for each change runs tests with its functions.

    It reads lines of JSON, a source, names of tests and seconds, and answers with 1 where a test fails. What
    was made of the module while it was imported stays as it was: 0 doesn't say that no test would fail.
    """

    module: str
    asked: int
    answer: int

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        found = {item.nodeid: item for item in session.items}
        functions = [
            each
            for each in gc.get_objects()
            if isinstance(each, FunctionType) and each.__code__.co_filename == self.module
        ]
        gc.freeze()
        with os.fdopen(self.asked, encoding="utf-8") as asked:
            for line in asked:
                source, names, seconds = json.loads(line)
                items = [found[name] for name in names]
                code = in_child(partial(self._run, source, functions, items), seconds)
                os.write(self.answer, str(code).encode())
        return True

    def _run(self, source: str, functions: list[FunctionType], items: list[pytest.Item]) -> int:
        codes = {
            (each.co_qualname, each.co_firstlineno): each
            for each in codes_in(compile(source, self.module, "exec"))
        }
        for function in functions:
            old = function.__code__
            new = codes.get((old.co_qualname, old.co_firstlineno))
            if new is not None and new.co_freevars == old.co_freevars:
                function.__code__ = new
        for item in items:
            if any(report.failed for report in runtestprotocol(item, log=False)):
                return 1
        return 0


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of each function and lambda in a piece of code."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from codes_in(each)


@dataclass(kw_only=True)
class Choice:
    """A plugin of pytest: runs the tests that are named, in their order."""

    names: list[str]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = {item.nodeid: item for item in items}
        items[:] = [found[name] for name in self.names]


def modules_of(asked: str) -> list[tuple[str, tuple[str, ...]]]:
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
    return [(file.relative_to(ROOT).as_posix(), TESTS[folder]) for file in files]


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


def silent() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def in_child(work: Callable[[], int], seconds: int = _SECONDS) -> int:
    """Run something in a forked child, without its output; return its exit code, 1 where a signal ended it.

    Args:
        work: Returns the exit code.
        seconds: Of a core, for an endless loop.
    """
    if (child := os.fork()) == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
            silent()
            code = work()
        finally:
            os._exit(code)
    return 1 if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) else 0


def run(paths: Collection[str], *options: str, plugin: object) -> int:
    fixed = (
        "-q",
        "-x",
        "--assert=plain",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:unraisableexception",
        "--hypothesis-profile=mutants",
    )
    return int(pytest.main([*fixed, *options, *paths], plugins=[plugin]))


def noticing(module: Path, tests: tuple[str, ...]) -> Noticing:
    """Run the tests on the module as it is, and import here what they import of others.

    Raises:
        SystemExit: A test fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"

        def work() -> int:
            sys.dont_write_bytecode = False  # those that follow compile what was changed, and nothing else
            found = Noticing(module=str(module))
            found.follow(found.while_imported)
            code = run(tests, plugin=found)
            sys.settrace(None)
            lines = {name: sorted(each) for name, each in found.lines.items()}
            result.write_text(
                json.dumps([sorted(found.while_imported), lines, found.seconds, sorted(sys.modules)]),
                encoding="utf-8",
            )
            return code

        if in_child(work):
            raise SystemExit(f"{' '.join(tests)}: these tests are to pass before anything is changed")
        imported, lines, seconds, names = json.loads(result.read_text(encoding="utf-8"))
    for name in names:
        if name.partition(".")[0] not in {PACKAGE, "tests", "conftest", "__main__"}:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    gc.freeze()
    return Noticing(
        module=str(module),
        while_imported=set(imported),
        lines={name: set(each) for name, each in lines.items()},
        seconds=seconds,
    )


def statement_at(tree: ast.Module, line: int) -> range:
    """Return the lines of the smallest statement that has a line; of a compound one without its body."""
    around = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.stmt) and each.lineno <= line <= (each.end_lineno or 0)
    ]
    if not around:
        return range(line, line + 1)
    least = min(around, key=lambda each: (each.end_lineno or 0) - each.lineno)
    body = getattr(least, "body", None)
    header = body and line < body[0].lineno
    return range(least.lineno, body[0].lineno if body and header else (least.end_lineno or 0) + 1)


@dataclass(kw_only=True)
class Judge:
    """Says of a changed module whether a test notices."""

    module: Path
    tests: tuple[str, ...]

    def __post_init__(self) -> None:
        self.original = self.module.read_text(encoding="utf-8")
        self.found = noticing(self.module, self.tests)
        asked, self.asked = os.pipe()
        self.answer, answer = os.pipe()
        self.server = os.fork()
        if self.server == 0:
            os.close(self.asked)
            try:
                silent()
                run(self.tests, plugin=Server(module=str(self.module), asked=asked, answer=answer))
            finally:
                os._exit(0)
        os.close(asked)
        os.close(answer)
        if self.quick(self.original, sorted(self.found.lines)):
            raise SystemExit(f"{' '.join(self.tests)}: these tests are to pass one by one")

    def seconds(self, names: list[str]) -> int:
        """Return how long these tests may take: measured while they were followed, they are slower."""
        return 3 + math.ceil(2 * sum(self.found.seconds[name] for name in names))

    def quick(self, source: str, names: list[str]) -> int:
        line = json.dumps([source, names, self.seconds(names)]).encode() + b"\n"
        while line:
            line = line[os.write(self.asked, line) :]
        return int(os.read(self.answer, 1))

    def exits(self) -> int:
        """Return 0 if all tests pass on the module as it is now."""
        changed = self.module.read_text(encoding="utf-8")
        pairs = zip(self.original.splitlines(), changed.splitlines(), strict=False)
        around = set(
            statement_at(
                ast.parse(self.original), next(at for at, (one, two) in enumerate(pairs, 1) if one != two)
            )
        )
        while_imported = around & self.found.while_imported
        names = [name for name, lines in self.found.lines.items() if while_imported or lines & around]
        names.sort(key=lambda name: self.found.seconds[name])

        def work() -> int:
            sys.dont_write_bytecode = True
            return run(sorted({name.partition("::")[0] for name in names}), plugin=Choice(names=names))

        if not names:
            return 0
        if not while_imported and self.quick(changed, names):
            return 1
        return in_child(work, self.seconds(names))

    def close(self) -> None:
        os.close(self.asked)
        os.close(self.answer)
        os.waitpid(self.server, 0)


def survivors(tree: Path, name: str, tests: tuple[str, ...]) -> list[str]:
    """Try every change of a module; return those that no test notices, as differences."""
    module, tools = tree / name, WORK / "venv" / "bin"
    configuration, session = tree / "mutants.toml", tree / "mutants.sqlite"
    asked, answer = tree / "asked", tree / "answer"
    session.unlink(missing_ok=True)
    for pipe in (asked, answer):
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
    configuration.write_text(
        _CONFIGURATION.format(module=name, asked=asked, answer=answer, unnoticed=_UNNOTICED),
        encoding="utf-8",
    )
    original = module.read_text(encoding="utf-8")
    for tool, *arguments in (
        ("cosmic-ray", "init", configuration, session),
        ("cr-filter-operators", session, configuration),
    ):
        subprocess.run([str(tools / tool), *map(str, arguments)], cwd=tree, check=True)
    lines = original.splitlines()
    with sqlite3.connect(session) as jobs:
        places = jobs.execute("SELECT job_id, start_pos_row, start_pos_col FROM mutation_specs").fetchall()
        for job, row, column in places:
            if lines[row - 1].strip().startswith("@dataclass") or lines[row - 1].startswith("*,", column):
                for table in ("work_results", "mutation_specs", "work_items"):
                    jobs.execute(f"DELETE FROM {table} WHERE job_id = ?", (job,))  # noqa: S608 - three words
    judge = Judge(module=module, tests=tests)
    asking = os.open(asked, os.O_RDWR | os.O_NONBLOCK)
    with subprocess.Popen(
        [str(tools / "cosmic-ray"), "exec", str(configuration), str(session)], cwd=tree
    ) as changing:
        while changing.poll() is None:
            if select.select([asking], [], [], 0.2)[0] and os.read(asking, 100):
                answer.write_text(str(judge.exits()), encoding="utf-8")
    os.close(asking)
    judge.close()
    if changing.returncode:
        raise SystemExit(f"cosmic-ray ended with {changing.returncode}")
    with sqlite3.connect(session) as results:
        lost = results.execute("SELECT diff FROM work_results WHERE test_outcome = 'SURVIVED'").fetchall()
        tried = results.execute("SELECT count(*) FROM work_results WHERE test_outcome NOT NULL").fetchone()[0]
    print(f"{name}: {len(lost)} of {tried} changes survive", flush=True)
    return [row[0] for row in lost]


def main(asked: list[str]) -> None:
    """Print what survives."""
    os.environ.setdefault(
        "JMSJCA_EXAMPLES", "30"
    )  # what only hundreds of generated inputs notice, chance noticed
    tree = copied()
    os.chdir(tree)
    sys.path[:] = [str(tree), *(each for each in sys.path if each not in {"", str(ROOT)})]
    for name in [each for each in sys.modules if each.partition(".")[0] == "tests"]:
        del sys.modules[name]
    for name, tests in [each for path in asked or list(TESTS) for each in modules_of(path)]:
        for difference in survivors(tree, name, tests):
            print(difference, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
