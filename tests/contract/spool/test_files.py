"""What the spool asks of the place where its files are."""

from __future__ import annotations

import threading

import pytest

from tests.internals.spool import (
    SpoolPath,
    add_name,
    build_folder,
    create_marker,
    entries,
    entry_of,
    exists,
    is_folder,
    make_folder,
    names_in,
    numbered,
    open_file,
    read_document,
    read_file,
    remove,
    remove_by_prefix,
    remove_folder,
    remove_if_unused,
    renew,
    seal,
    stage,
    walk,
)


@pytest.fixture
def folder(spool: SpoolPath) -> SpoolPath:
    make_folder(spool)
    return spool


def test_a_file_is_created_once(folder: SpoolPath) -> None:
    assert seal(folder / "a", b"first")
    assert not seal(folder / "a", b"second")
    assert read_file(folder / "a") == b"first"
    assert names_in(folder) == ["a"]


def test_an_empty_one_too(folder: SpoolPath) -> None:
    assert seal(folder / "fence-000001", b"")
    assert not seal(folder / "fence-000001", b"")
    assert read_file(folder / "fence-000001") == b""


def test_of_many_threads_one_wins(folder: SpoolPath) -> None:
    barrier = threading.Barrier(8)
    wins: list[int] = []

    def attempt(number: int) -> None:
        barrier.wait()
        if seal(folder / "a", str(number).encode() * 1000):
            wins.append(number)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert read_file(folder / "a") == str(wins[0]).encode() * 1000


def test_a_large_file_comes_back_piece_by_piece(folder: SpoolPath) -> None:
    pieces = [bytes([number]) * 700_000 for number in range(5)]
    with stage(folder / "a") as staged:
        for piece in pieces:
            staged.write(piece)
        assert not exists(folder / "a")
        assert staged.seal()
    assert staged.size == entry_of(folder / "a").size == 3_500_000
    with open_file(folder / "a") as file:
        file.seek(1_399_999)
        assert file.read(2) == b"\x01\x02"
        file.seek(0)
        assert file.read() == b"".join(pieces)


def test_what_is_given_up_is_not_there(folder: SpoolPath) -> None:
    with stage(folder / "a") as staged:
        staged.write(b"half")
    assert not exists(folder / "a")


def test_what_is_missing(folder: SpoolPath) -> None:
    assert not exists(folder / "a")
    assert not is_folder(folder / "a")
    remove(folder / "a")
    remove_folder(folder / "a")
    for missing in (read_file, read_document, entry_of):
        with pytest.raises(FileNotFoundError):
            missing(folder / "a")


def test_folders_and_what_is_in_them(folder: SpoolPath) -> None:
    make_folder(folder / "inner")
    seal(folder / "inner" / "b~7E", b"12")
    seal(folder / "a", b"1")
    assert [(each.path, each.is_folder) for each in entries(folder)] == [
        (folder / "a", False),
        (folder / "inner", True),
    ]
    found = {each.path: each.size for each in walk(folder) if not each.is_folder}
    assert found == {folder / "a": 1, folder / "inner" / "b~7E": 2}
    assert is_folder(folder / "inner")
    assert not is_folder(folder / "inne")
    assert not exists(folder / "inner" / "b")
    remove_by_prefix(folder, "inn")
    assert names_in(folder) == ["a"]


def test_numbered_files_in_order(folder: SpoolPath) -> None:
    for name in ("segment-000010.parquet", "segment-000002.parquet", "segment-x", "other-000001"):
        seal(folder / name, b"")
    assert [number for number, _ in numbered(folder, "segment")] == [2, 10]


def test_marks_and_age(folder: SpoolPath) -> None:
    create_marker(folder / "open-1")
    seal(folder / "message", b"content")
    before = entry_of(folder / "message").modified
    renew(folder / "message", b"content")
    assert entry_of(folder / "message").modified >= before
    assert read_file(folder / "message") == b"content"
    assert sorted(names_in(folder)) == ["message", "open-1"]


def test_a_folder_that_may_not_go_stays(folder: SpoolPath) -> None:
    make_folder(folder / "batch")
    seal(folder / "batch" / "batch.json", b"{}")
    assert not remove_if_unused(folder / "batch", may_remove=lambda _: False, kept_prefix="segment")
    assert exists(folder / "batch" / "batch.json")
    assert remove_if_unused(folder / "batch", may_remove=lambda _: True, kept_prefix="segment")
    assert not is_folder(folder / "batch")
    assert not remove_if_unused(folder / "batch", may_remove=lambda _: True, kept_prefix="segment")


def test_a_folder_is_there_with_its_last_file(folder: SpoolPath) -> None:
    def fill(place: SpoolPath) -> None:
        seal(place / "first", b"1")
        seal(place / "last", b"2")

    def refuse() -> threading.Lock:
        raise RuntimeError("a newer attempt")

    with pytest.raises(RuntimeError, match="a newer attempt"):
        build_folder(folder / "splits" / "0-9", fill, refuse)
    assert not exists(folder / "splits" / "0-9" / "last")
    build_folder(folder / "splits" / "0-9", fill, threading.Lock)
    build_folder(folder / "splits" / "0-9", fill, threading.Lock)
    assert names_in(folder / "splits") == ["0-9"]
    assert sorted(names_in(folder / "splits" / "0-9")) == ["first", "last"]


def test_a_file_of_another_process_gets_a_name_once(folder: SpoolPath) -> None:
    seal(folder / "part", b"lines")
    assert add_name(folder / "part", folder / "rejects")
    assert not add_name(folder / "part", folder / "rejects")
    assert read_file(folder / "rejects") == b"lines"
