from __future__ import annotations

import functools
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.activemq import LOCK as ACTIVEMQ_LOCK
from tests.servers.artemis import LOCK as ARTEMIS_LOCK
from tests.servers.artifacts import Artifact, fetch, read_lock, unpack
from tests.servers.errors import ServerError

CONTENT = b"a jar"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Repository:
    """A Maven repository on loopback that remembers what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []

    def put(self, path: str, content: bytes) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


class _Handler(http.server.SimpleHTTPRequestHandler):
    repository: Repository

    def do_GET(self) -> None:
        self.repository.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
        pass


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    found = Repository(tmp_path / "repository")
    found.folder.mkdir()
    handler = type("Handler", (_Handler,), {"repository": found})
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(found.folder))
    ) as server:
        monkeypatch.setenv("JMSJCA_MAVEN_REPOSITORY", f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def lock(folder: Path, *lines: str) -> Path:
    path = folder / "test.lock"
    path.write_text("\n".join(lines))
    return path


def test_lock_line_of_a_jar_and_of_an_archive(tmp_path: Path) -> None:
    path = lock(
        tmp_path, "# pinned", "", f"org.a:b:1.0 {'0' * 64}", f"org.a:c:2.0:tar.gz:bin {'f' * 64}  # why"
    )
    assert read_lock(path) == (
        Artifact(group="org.a", name="b", version="1.0", sha256="0" * 64),
        Artifact(
            group="org.a", name="c", version="2.0", packaging="tar.gz", classifier="bin", sha256="f" * 64
        ),
    )
    assert [one.file_name for one in read_lock(path)] == ["b-1.0.jar", "c-2.0-bin.tar.gz"]


def test_every_bad_lock_line_is_named(tmp_path: Path) -> None:
    path = lock(tmp_path, f"org.a:b {'0' * 64}", f"org.a:b:1 {'0' * 64}", "org.a:b:1 abc")
    with pytest.raises(ServerError) as caught:
        read_lock(path)
    text = str(caught.value)
    assert "test.lock, line 1: 'org.a:b 000" in text
    assert "test.lock, line 3: 'org.a:b:1 abc', expected group:name:version" in text
    assert "line 2" not in text


def test_our_own_locks_are_whole() -> None:
    assert len(read_lock(ACTIVEMQ_LOCK)) == 26
    assert [str(one) for one in read_lock(ARTEMIS_LOCK)] == [
        "org.apache.artemis:apache-artemis:2.56.0:tar.gz:bin"
    ]


def test_downloads_once(tmp_path: Path, repository: Repository) -> None:
    repository.put("org/a/b/1.0/b-1.0.jar", CONTENT)
    path = lock(tmp_path, f"org.a:b:1.0 {DIGEST}")
    (file,) = fetch(path, cache=tmp_path / "cache")
    assert file.read_bytes() == CONTENT
    asked = len(repository.asked)
    assert asked
    assert fetch(path, cache=tmp_path / "cache") == (file,)
    assert len(repository.asked) == asked


def test_wrong_hash_is_refused_and_not_kept(tmp_path: Path, repository: Repository) -> None:
    repository.put("org/a/b/1.0/b-1.0.jar", b"something else")
    with pytest.raises(ServerError, match=r"b-1\.0\.jar has sha256 .* not what was pinned") as caught:
        fetch(lock(tmp_path, f"org.a:b:1.0 {DIGEST}"), cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert [file for file in (tmp_path / "cache").rglob("*") if file.is_file()] == []


def test_spoilt_cache_is_noticed(tmp_path: Path, repository: Repository) -> None:
    repository.put("org/a/b/1.0/b-1.0.jar", CONTENT)
    path = lock(tmp_path, f"org.a:b:1.0 {DIGEST}")
    (file,) = fetch(path, cache=tmp_path / "cache")
    file.write_bytes(b"spoilt by somebody")
    with pytest.raises(ServerError, match=rf"{file} has sha256 .*: delete it to fetch it again"):
        fetch(path, cache=tmp_path / "cache")


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # jgo doesn't close it
def test_missing_file_says_the_way_out(tmp_path: Path, repository: Repository) -> None:
    assert repository.asked == []
    with pytest.raises(ServerError, match=r"org\.a:b:1\.0:jar can't be downloaded") as caught:
        fetch(lock(tmp_path, f"org.a:b:1.0 {DIGEST}"), cache=tmp_path / "cache")
    assert "JMSJCA_MAVEN_REPOSITORY" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unpacks_once(tmp_path: Path) -> None:
    archive = tmp_path / "thing-1.0-bin.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("thing-1.0/lib/a.txt")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"hello"))
    home = unpack(archive, cache=tmp_path / "cache")
    assert (home / "lib" / "a.txt").read_text() == "hello"
    archive.unlink()
    assert unpack(archive, cache=tmp_path / "cache") == home
    assert len(list((tmp_path / "cache" / "unpacked").iterdir())) == 1
