"""The page on the architecture names what is there, and the files that a message really enters."""

from __future__ import annotations

import ast
import re
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.docs.__main__ import ROOT
from tests.docs.walks import follow

pytestmark = pytest.mark.unit

PACKAGE = ROOT / "airflow_provider_jmsjca"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = frozenset(re.findall(r"`([\w./-]+(?:\.py|/))`", PAGE))


def test_every_path_is_there() -> None:
    assert len(NAMED) > 40
    missing = sorted(name for name in NAMED if not ((PACKAGE / name).exists() or (ROOT / name).exists()))
    assert missing == []


FOLDERS = sorted(
    path
    for room in ("core", "engine")
    for path in (PACKAGE / room).rglob("*")
    if (path / "__init__.py").exists()
)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_imports_those_of_its_room_that_its_docstring_names(folder: Path) -> None:
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    if "everything below" in said:
        return
    sentences = re.findall(r"[Mm]ay import [^.]*(?:\.\w[^.]*)*", " ".join(said.split()))
    named = {name for sentence in sentences for name in re.findall(r"`((?:core|engine)\.[\w.]+)`", sentence)}
    assert _imported_folders(folder) == {
        name for name in named if PACKAGE.joinpath(*name.split(".")).is_dir()
    }


def _imported_folders(folder: Path, *, with_own: bool = False) -> set[str]:
    """Return the folders of its room, besides itself, from which a folder's modules import.

    Args:
        folder: Which.
        with_own: The room's own folder counts too.
    """
    room = folder.relative_to(PACKAGE).parts[0]
    found = set()
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = getattr(node, "module", None) or ""
            if not name.startswith(f"{PACKAGE.name}.{room}."):
                continue
            parts = name.split(".")[1:]
            if not PACKAGE.joinpath(*parts).is_dir():
                parts.pop()
            if PACKAGE.joinpath(*parts) not in ({folder} if with_own else {folder, PACKAGE / room}):
                found.add(".".join(parts))
    return found


@pytest.mark.parametrize("room", ["core", "engine"])
def test_the_folders_of_a_room_make_no_circle(room: str) -> None:
    """The room's own folder, with the modules that are in no other, counts as one."""
    folders = [
        PACKAGE / room,
        *(folder for folder in FOLDERS if folder.relative_to(PACKAGE).parts[0] == room),
    ]
    graph = {
        ".".join(folder.relative_to(PACKAGE).parts): _imported_folders(folder, with_own=True)
        for folder in folders
    }
    order = list(TopologicalSorter(graph).static_order())  # or it raises CycleError, which names the circle
    assert room in order


def test_nothing_else_is_imported_by_name_that_a_contract_does_not_see() -> None:
    found = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if re.search(r"\bimport_module\b|\b__import__\b", file.read_text(encoding="utf-8"))
    }
    assert found == {
        "__init__.py",  # the public names
        "core/activation/spec.py",  # descriptors of other products
        "spool/arrow.py",  # Arrow, which a DAG file must not load
        "spool/references.py",  # the trusted spools, which Airflow configures
        "plugins/holding.py",  # Airflow's triggerer alone needs it
        "transports/__init__.py",  # the transport of a scheme
    }


_ROWS = re.findall(r"^\| ([\w-]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
WALKS_OF_PAGE = {kind: (int(files), int(functions)) for kind, files, functions, *_ in _ROWS}
MORE_FILES, MORE_FUNCTIONS = 1, 20
"""By chance: threads meet at other points, the more so on a busy machine."""


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("direct", "serial"), ("direct", "cc"), ("decided", "cc")],
    ids=["serial", "cc", "with a decision for each message"],
)
def test_a_message_enters_no_file_that_is_not_named(kind: str, mode: str) -> None:
    walk = follow(kind, mode)
    unnamed = [
        file
        for file in walk.files
        if file not in NAMED and not any(name.endswith("/") and file.startswith(name) for name in WALKED)
    ]
    assert unnamed == []
    files, functions = WALKS_OF_PAGE[kind]
    assert len(walk.files) <= files + MORE_FILES
    assert walk.functions <= functions + MORE_FUNCTIONS


def test_a_moved_message_enters_the_files_of_its_walk() -> None:
    walk = follow("dead-letter")
    files, functions = WALKS_OF_PAGE["dead-letter"]
    assert len(walk.files) <= files + MORE_FILES
    assert walk.functions <= functions + MORE_FUNCTIONS
    raised = next(number for number, (file, _) in enumerate(walk.calls) if file == "core/failure.py")
    entered = {file for file, _ in walk.calls[raised:]}
    section = PAGE.partition("### A message to the dead-letter queue\n")[2].partition("\n### ")[0]
    named = set(re.findall(r"`([\w./-]+(?:\.py|/))`", section))
    folders = tuple(name for name in named if name.endswith("/"))
    assert {file for file in entered if file not in named and not file.startswith(folders)} == set()
    aside = {"core/activation/redelivery.py", *folders}
    assert named - aside <= entered


WALKED = ("core/delivery/", "core/redelivery/", "transports/stomp/")
"""Folders that the walk names as a whole."""


def test_the_engine_is_low() -> None:
    """A reader climbs at most this many floors: a module stands one above the highest that it imports."""
    files = {".".join(each.relative_to(ROOT).with_suffix("").parts): each for each in ENGINE.rglob("*.py")}
    imported = re.compile(r"^from (\S+) import", re.MULTILINE)
    imports = {module: imported.findall(file.read_text(encoding="utf-8")) for module, file in files.items()}

    def floor(module: str) -> int:
        return 1 + max((floor(each) for each in imports[module] if each in files), default=0)

    floors = {module: floor(module) for module in files}
    assert {module: number for module, number in floors.items() if number > MOST_FLOORS} == {}


ENGINE = PACKAGE / "engine"
MOST_FLOORS = 8


def test_no_folder_is_crowded() -> None:
    """A reader sees what is in a folder at a glance."""
    folders = Counter(file.parent for file in PACKAGE.rglob("*.py") if file.name != "__init__.py")
    assert {str(folder): count for folder, count in folders.items() if count > MOST_FILES} == {}


MOST_FILES = 15
