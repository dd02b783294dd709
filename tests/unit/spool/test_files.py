from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spool.files import numbered, remove_temporary, seal


def test_a_file_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert seal(path, b"first")
    assert not seal(path, b"second")
    assert path.read_bytes() == b"first"
    assert [item.name for item in tmp_path.iterdir()] == ["a"]


def test_content_in_pieces(tmp_path: Path) -> None:
    assert seal(tmp_path / "a", [b"one", memoryview(b"two")])
    assert (tmp_path / "a").read_bytes() == b"onetwo"


def test_of_many_threads_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "a"
    barrier = threading.Barrier(8)
    wins: list[int] = []

    def attempt(number: int) -> None:
        barrier.wait()
        if seal(path, str(number).encode() * 1000):
            wins.append(number)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert path.read_bytes() == str(wins[0]).encode() * 1000


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a"
    with pytest.raises(SpoolError, match=r"missing/a: can't be written: No such file or directory"):
        seal(path, b"x")


def test_a_full_disk_leaves_nothing() -> None:
    with pytest.raises(SpoolError, match="can't be written"):
        seal(Path("/proc/a"), b"x")


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".tmp-1").write_bytes(b"half")
    (tmp_path / "a").write_bytes(b"whole")
    remove_temporary(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["a"]


def test_numbered_files_in_order(tmp_path: Path) -> None:
    for name in (
        "segment-000010.parquet",
        "segment-000002.parquet",
        "segment-1000000.parquet",
        "segment-x",
        "other-000001",
    ):
        (tmp_path / name).touch()
    assert [number for number, _ in numbered(tmp_path, "segment")] == [2, 10, 1_000_000]
