"""A spool that is copied while a batch is collected, and restored while broker and tables go on."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.contract.spool.conftest import ORDERS, rows
from tests.internals.spool import SpoolBatch, State, batches, message_key, verify


def collect(spool: Path, name: str, *numbers: int) -> None:
    with SpoolBatch(spool, name, source=str(ORDERS), activation="a") as batch:
        batch.seal(rows(numbers))
        batch.complete()


def knows(spool: Path, *numbers: int) -> list[int]:
    """Return the messages that a new batch drops when the broker repeats them."""
    with SpoolBatch(spool, "new", source=str(ORDERS), activation="a") as batch:
        return [each for each in numbers if batch.may_contain(message_key(f"ID:{each}", str(ORDERS)))]


def test_a_spool_that_is_restored_alone(tmp_path: Path) -> None:
    spool, copy = tmp_path / "spool", tmp_path / "copy"
    collect(spool, "b1", 1)
    with SpoolBatch(spool, "b2", source=str(ORDERS), activation="a") as batch:
        batch.seal(rows([2]))
        shutil.copytree(spool, copy)
        batch.seal(rows([3]))
        batch.complete()
    collect(spool, "b3", 4)

    found = list(batches(copy))
    assert [(each.batch_id, each.state) for each in found] == [
        ("b1", State.COLLECTED),
        ("b2", State.UNFINISHED),
    ]
    assert [verify(each) for each in found] == [None, None]
    # Messages 3 and 4 are in no batch: lost if they were acknowledged, else delivered and stored again.
    assert knows(copy, 1, 2, 3, 4) == [1, 2]
    # The interrupted batch goes on where the copy was made.
    with SpoolBatch(copy, "b2", source=str(ORDERS), activation="a") as batch:
        batch.seal(rows([3]))
        assert batch.complete().rows == 2


def test_a_copy_without_the_index_of_known_ids_reads_them_from_the_batches(tmp_path: Path) -> None:
    spool, copy = tmp_path / "spool", tmp_path / "copy"
    collect(spool, "b1", 1)
    collect(spool, "b2", 2)
    assert (spool / ".known").is_dir()
    shutil.copytree(spool, copy, ignore=shutil.ignore_patterns(".known"))
    assert knows(copy, 1, 2, 3) == [1, 2]
