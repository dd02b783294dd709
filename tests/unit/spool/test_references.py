"""Messages that events refer to."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca import message_from_event, messages_from_event
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError, SpoolError
from airflow_provider_jmsjca.spool.references import FOLDER, read_message, seal_message, sweep_references

MESSAGE = JmsMessage.map({"n": 1, "b": b"\x00\xff"}, {"region": "eu"}, message_id="ID:1", correlation_id="c")


def files(spool: Path) -> list[Path]:
    return sorted(path for path in spool.rglob("*") if path.is_file())


def test_the_message_comes_back_exactly(tmp_path: Path) -> None:
    spool = tmp_path / "a place#1"
    reference = json.loads(json.dumps(seal_message(spool, MESSAGE)))
    assert read_message(reference, [spool]) == MESSAGE
    event = {"headers": {}, "reference": reference}
    assert message_from_event(event, spool_path=spool) == MESSAGE
    assert messages_from_event({"messages": [event, event]}, spool_path=str(spool)) == (MESSAGE,) * 2
    (path,) = files(spool)
    assert path.stat().st_size == reference["bytes"]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_sealed_again_it_is_the_same_file_and_young(tmp_path: Path) -> None:
    first = seal_message(tmp_path, MESSAGE)
    (path,) = files(tmp_path)
    os.utime(path, (1, 1))
    assert seal_message(tmp_path, MESSAGE) == first
    assert files(tmp_path) == [path]
    assert sweep_references(tmp_path, timedelta(hours=1)) == 0


@pytest.mark.parametrize("change", ["cut", "changed", "longer", "gone", "link", "pipe"])
def test_what_was_not_sealed_is_not_believed(tmp_path: Path, change: str) -> None:
    reference = seal_message(tmp_path, MESSAGE)
    (path,) = files(tmp_path)
    content = path.read_bytes()
    match change:
        case "cut":
            path.write_bytes(content[:-1])
        case "changed":
            path.write_bytes(content.replace(b"eu", b"us"))
        case "longer":
            path.write_bytes(content + b" ")
        case "gone":
            path.unlink()
        case "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case "pipe":
            path.unlink()
            os.mkfifo(path)
    with pytest.raises(SpoolError, match=str(path)):
        read_message(reference, [tmp_path])


@pytest.mark.parametrize(
    "place",
    [
        "hdfs://127.0.0.1:{port}/spool",
        "s3://elsewhere/spool",
        "abfs://spool@elsewhere.dfs.core.windows.net/spool",
        "file://{other}",
        "{other}",
        "file://{spool}/../other",
        "file://{spool}/%2e%2e/other",
        "file://{spool}//../other",
        "file://{spool}/link",
        "file://{spool}2",
        "file://localhost.example.com{spool}",
        "file://user@{spool}",
    ],
)
def test_a_forged_reference_opens_nothing_outside_of_the_trusted_spools(tmp_path: Path, place: str) -> None:
    spool, other = tmp_path / "spool", tmp_path / "other"
    forged = seal_message(other, MESSAGE)
    seal_message(tmp_path / "spool2", MESSAGE)
    seal_message(spool, JmsMessage.text("another"))
    (spool / "link").symlink_to(other)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        where = place.format(port=listening.getsockname()[1], spool=spool, other=other)
        forged["uri"] = f"{where}/{FOLDER}/{forged['sha256'][:2]}/{forged['sha256']}.json"
        with pytest.raises(ConfigurationError, match=r"^reference: ") as refused:
            read_message(forged, [spool])
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert "is not a message in a spool" in str(refused.value) or (
        f"expected one below file://{spool}." in str(refused.value) and "spool_roots" in str(refused.value)
    )


def test_without_airflow_the_caller_names_the_spool(tmp_path: Path) -> None:
    event = {"headers": {}, "reference": seal_message(tmp_path, MESSAGE)}
    program = """
import json, sys
sys.modules["airflow"] = None
from airflow_provider_jmsjca import ConfigurationError, message_from_event
event = json.loads(sys.argv[1])
print(message_from_event(event, spool_path=sys.argv[2]).body["n"])
try:
    message_from_event(event)
except ConfigurationError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(event), tmp_path],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("1\nthe event refers to a message in a spool, and without Airflow")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["uri", "sha256", "bytes"]),
        st.none()
        | st.integers()
        | st.text()
        | st.just("0" * 64)
        | st.just("file:///x/.events/00/" + "0" * 64),
    )
)
def test_no_reference_raises_anything_else(reference: dict[str, Any]) -> None:
    with pytest.raises(JmsError):
        read_message(reference, [Path("/x")])


@pytest.mark.parametrize("size", [-5, 0, True, 10**15, 10**30])
def test_a_size_that_is_not_the_file_s_takes_no_memory(tmp_path: Path, size: int) -> None:
    reference = {**seal_message(tmp_path, MESSAGE), "bytes": size}
    with pytest.raises(SpoolError, match=f"of {size} bytes, found "):
        read_message(reference, [tmp_path])


@pytest.mark.parametrize(
    "place", ["file:///x%00y", "file:///\ud800", "/x\0y", "file://[x", "hdfs://[x", "https://x", "file://x"]
)
def test_a_place_that_no_file_can_have_is_refused(place: str) -> None:
    reference = {"uri": f"{place}/{FOLDER}/00/{'0' * 64}.json", "sha256": "0" * 64, "bytes": 3}
    with pytest.raises(JmsError):
        read_message(reference, [Path("/x")])


@pytest.mark.parametrize(
    "content", [b"hello", b"\xff\xfe", b"null", b"[1]", b"{}", b"[" * 100_000, b"9" * 5_000, b'{"a": NaN}']
)
def test_a_file_that_is_no_message_is_named(tmp_path: Path, content: bytes) -> None:
    """Its digest is right: whoever forged the event has put it there."""
    digest = hashlib.sha256(content).hexdigest()
    path = tmp_path / FOLDER / digest[:2] / f"{digest}.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(SpoolError, match=f"{path}: it holds no message"):
        read_message({"uri": f"file://{path}", "sha256": digest, "bytes": len(content)}, [tmp_path])


def test_old_ones_are_swept_and_others_stay(tmp_path: Path) -> None:
    old, young = (seal_message(tmp_path, JmsMessage.text(text)) for text in ("old", "young"))
    batch = tmp_path / "batch"
    batch.mkdir()
    (batch / "manifest.json").write_text("{}")
    for path in files(tmp_path):
        if path.stem != young["sha256"]:
            os.utime(path, (1, 1))
    leftover = tmp_path / FOLDER / "00" / ".tmp-1"
    leftover.parent.mkdir(exist_ok=True)
    leftover.write_text("half of")
    os.utime(leftover, (1, 1))
    assert sweep_references(tmp_path, timedelta(days=30)) == 2
    assert read_message(young, [tmp_path]).body == "young"
    assert (batch / "manifest.json").exists()
    with pytest.raises(SpoolError, match=r"deleted after .* reference_retention_days"):
        read_message(old, [tmp_path])
    assert sweep_references(tmp_path / "nowhere", timedelta(days=30)) == 0


def test_one_who_is_killed_while_sealing_leaves_nothing_that_is_believed(tmp_path: Path) -> None:
    """Killed after each system call that matters: the name is there only with the whole content."""
    program = """
import os, sys
from pathlib import Path
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.spool import references
spool, step = Path(sys.argv[1]), int(sys.argv[2])
calls = 0
def counted(call):
    def kills(*arguments, **named):
        global calls
        calls += 1
        if calls == step:
            os.kill(os.getpid(), 9)
        return call(*arguments, **named)
    return kills
for name in ("fsync", "link"):
    setattr(os, name, counted(getattr(os, name)))
print(references.seal_message(spool, JmsMessage.text("x" * 100_000, message_id="ID:1"))["sha256"])
"""
    killed = 0
    for step in range(1, 6):
        spool = tmp_path / str(step)
        done = subprocess.run(
            [sys.executable, "-c", program, spool, str(step)], capture_output=True, text=True, check=False
        )
        killed += done.returncode == -9
        named = [path for path in files(spool) if path.suffix == ".json"]
        reference = seal_message(spool, JmsMessage.text("x" * 100_000, message_id="ID:1"))
        assert [path.stem for path in named] in ([], [reference["sha256"]])
        assert read_message(reference, [spool]).body == "x" * 100_000
    assert killed >= 3
