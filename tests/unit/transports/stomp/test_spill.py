from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from airflow_provider_jmsjca.errors import ConnectionLostError
from airflow_provider_jmsjca.transports.stomp.spill import FrameMemory, SpilledFrame
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame


def frame(number: int, size: int = 100) -> Frame:
    return Frame(b"MESSAGE", b"\nack:%d" % number, b"%d" % number * size, b"s1")


def test_what_is_beyond_the_limit_is_on_disk_and_comes_back_as_it_was() -> None:
    memory = FrameMemory(limit=250)
    kept = [memory.hold(frame(number)) for number in range(5)]
    assert [isinstance(each, SpilledFrame) for each in kept] == [False, False, True, True, True]
    for number, each in enumerate(kept):
        wanted = frame(number)
        assert (each.command, each.head, each.body, each.key) == (b"MESSAGE", wanted.head, wanted.body, b"s1")
        assert each.first(b"\nack:") == b"%d" % number
    spilled = kept[2]
    assert isinstance(spilled, SpilledFrame)
    assert (spilled.loaded().body, spilled.loaded().fault) == (b"2" * 100, None)


def test_memory_is_free_again_when_nobody_holds_the_frame() -> None:
    memory = FrameMemory(limit=150)
    first = memory.hold(frame(1))
    assert isinstance(memory.hold(frame(2)), SpilledFrame)
    del first
    assert not isinstance(memory.hold(frame(3)), SpilledFrame)


def test_a_frame_larger_than_the_limit_is_let_in_alone() -> None:
    memory = FrameMemory(limit=10)
    kept = [memory.hold(frame(1)), memory.hold(frame(2))]
    assert [isinstance(each, SpilledFrame) for each in kept] == [False, True]


def test_the_file_has_no_name_and_is_closed_with_its_last_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = len(list(Path("/proc/self/fd").iterdir()))
    memory = FrameMemory(limit=150)
    kept = [memory.hold(frame(number)) for number in range(3)]
    assert list(tmp_path.iterdir()) == []
    spilled = kept[2]
    assert isinstance(spilled, SpilledFrame)
    found = os.fstat(spilled._file._descriptor)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_nlink == 0
    del spilled
    kept.clear()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_where_the_disk_takes_nothing_the_connection_ends_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    memory = FrameMemory(limit=150)
    kept = memory.hold(frame(1))
    with pytest.raises(ConnectionLostError, match=r"can't be written: .*set TMPDIR, or lower the prefetch"):
        memory.hold(frame(2))
    assert kept.body == b"1" * 100
