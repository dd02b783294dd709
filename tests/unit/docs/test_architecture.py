"""The page on the architecture names what is there, and the files that a message really enters."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.engine.activations.activation import Activation
from airflow_provider_jmsjca.transports.base import ConnectionSettings
from tests.docs.__main__ import ROOT
from tests.servers.stomp_peer import ScriptedBroker
from tests.unit.engine.listening import until

pytestmark = pytest.mark.unit

PACKAGE = ROOT / "airflow_provider_jmsjca"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = frozenset(re.findall(r"`([\w./-]+(?:\.py|/))`", PAGE))
WITHIN = 60


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
    sentences = re.findall(r"[Mm]ay import [^.]*(?:\.\w[^.]*)*", said)
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


class Followed:
    """Notes which files of the package are entered while `on` is set, in the order of the first time."""

    def __init__(self) -> None:
        self.on = False
        self.files: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if self.on and event == "call" and file.startswith(str(PACKAGE)):
            self.files[Path(file).relative_to(PACKAGE).as_posix()] = None


@pytest.fixture
def followed() -> Iterator[Followed]:
    one = Followed()
    before = threading.getprofile()
    threading.setprofile(one)
    yield one
    threading.setprofile(before)
    sys.setprofile(None)


DIRECTLY, DECIDED = 15, 21
"""Most files on the direct way, and where the machine decides for each message; not to be raised."""


@pytest.mark.parametrize(
    ("most", "mode", "header"),
    [
        (DIRECTLY, "serial", b""),
        (DIRECTLY, "cc", b""),
        (DECIDED, "cc", b"JMSXGroupID:one after the other\n"),
    ],
    ids=["serial", "cc", "with a decision for each message"],
)
def test_a_message_enters_no_file_that_is_not_named(
    most: int, mode: str, header: bytes, followed: Followed
) -> None:
    subscribed, handled = threading.Event(), threading.Semaphore(0)
    sends = [threading.Event() for _ in range(3)]

    def wait_and_send(client: Any, answer: bytes, _: threading.Event) -> None:
        def later() -> None:
            for send in sends:
                if send.wait(WITHIN):
                    client.sendall(answer.replace(b"MESSAGE\n", b"MESSAGE\n" + header))

        threading.Thread(target=later).start()
        subscribed.set()

    peer = ScriptedBroker(wait_and_send, step="MESSAGE")
    settings = ConnectionSettings(scheme="stomp", hosts=(("127.0.0.1", peer.port),))
    activation = Activation(
        ActivationSpec(destination="queue://q", concurrency_mode=mode),
        lambda _: handled.release(),
        connection=settings,
    )
    try:
        activation.start()
        assert subscribed.wait(WITHIN)
        until(lambda: activation.ready, within=WITHIN)
        ways = []
        for number, send in enumerate(sends, 1):
            followed.files.clear()
            followed.on = number > 1  # the first finds the connection still being opened
            send.set()
            assert handled.acquire(timeout=WITHIN)
            until(lambda already=number: len(peer.acknowledged) == already, within=WITHIN)
            followed.on = False
            if number > 1:
                ways.append(list(followed.files))
    finally:
        activation.stop()
        peer.close()
    unnamed = [
        file
        for file in {*ways[0], *ways[1]}
        if file not in NAMED and not any(name.endswith("/") and file.startswith(name) for name in WALKED)
    ]
    assert unnamed == []
    assert len(ways[0]) <= most
    assert len(ways[1]) <= most


def test_a_moved_message_enters_the_files_of_its_walk(followed: Followed) -> None:
    subscribed, send = threading.Event(), threading.Event()

    def wait_and_send(client: Any, answer: bytes, _: threading.Event) -> None:
        def later() -> None:
            if send.wait(WITHIN):
                client.sendall(answer)

        threading.Thread(target=later).start()
        subscribed.set()

    def fail(_: object) -> None:
        followed.on = True
        raise ValueError("no stock")

    peer = ScriptedBroker(wait_and_send, step="MESSAGE")
    activation = Activation(
        ActivationSpec(destination="queue://q", redelivery_handling="1:move(queue:$.dlq)"),
        fail,
        connection=ConnectionSettings(scheme="stomp", hosts=(("127.0.0.1", peer.port),)),
    )
    try:
        activation.start()
        assert subscribed.wait(WITHIN)
        until(lambda: activation.ready, within=WITHIN)
        send.set()
        until(lambda: activation.counts.moved == 1, within=WITHIN)
        followed.on = False
    finally:
        activation.stop()
        peer.close()
    walk = PAGE.partition("### A message to the dead-letter queue\n")[2].partition("\n### ")[0]
    named = set(re.findall(r"`([\w./-]+(?:\.py|/))`", walk))
    folders = tuple(name for name in named if name.endswith("/"))
    assert {file for file in followed.files if file not in named and not file.startswith(folders)} == set()
    aside = {"core/activation/redelivery.py", *folders}
    assert named - aside <= set(followed.files)


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
