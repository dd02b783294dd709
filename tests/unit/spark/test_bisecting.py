"""What is stored and turned away when a job fails on some messages; the script needs no Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spark.job import Batch
from airflow_provider_jmsjca.spark.jobs.bisecting import main
from airflow_provider_jmsjca.spark.rejects import rejected_messages
from airflow_provider_jmsjca.spool.attempts import Done, take_fence
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.splits import lineage, parts
from tests.unit.spool.batches import MakeRows, OpenBatch

SCRIPT = """
import json
import pyarrow.parquet as pq
from airflow_provider_jmsjca.spark.job import Batch

with Batch.from_args() as batch:
    (place,) = batch.arguments
    with open(place) as file:
        asked = json.load(file)
    with open(place + ".runs", "a") as file:
        file.write(batch.batch_id + "\\n")
    bodies = []
    for path in batch.manifest.segment_paths():
        bodies += [body.decode() for body in pq.ParquetFile(path).read(["body"]).column("body").to_pylist()]
    with open(place + ".runs") as file:
        runs = len(file.readlines())
    if asked["dies_at"] == runs:
        raise RuntimeError("the driver dies")
    if asked["stores_first"]:
        batch._stored["/t"] = 1
    bad = [body for body in bodies if body in asked["poison"]]
    if bad:
        raise ValueError(f"{bad[0]} is poison")
    with open(place + ".table", "a") as file:
        file.writelines(body + "\\n" for body in bodies)
    batch._stored["/t"] = len(bodies)
"""
Run = Callable[..., "Job"]


class Job:
    """A batch of messages `body 0` ... and a script that fails on some."""

    def __init__(self, manifest: Manifest, place: Path) -> None:
        self.manifest = manifest
        self._place = place
        self._script = place.with_suffix(".py")
        self._script.write_text(SCRIPT)

    def submit(self, poison: Sequence[int], *, splits: int = 64, **asked: object) -> None:
        numbers = [f"body {number}" for number in poison]
        self._place.write_text(
            json.dumps({"poison": numbers, "dies_at": None, "stores_first": False, **asked})
        )
        contract = {
            "--application": str(self._script),
            "--splits": str(splits),
            "--manifest": self.manifest.uri,
            "--batch-id": self.manifest.batch_id,
            "--fence": str(take_fence(self.manifest.folder)),
        }
        main([*(text for pair in contract.items() for text in pair), str(self._place)])

    def lines(self, what: str) -> list[str]:
        path = Path(f"{self._place}.{what}")
        return path.read_text().splitlines() if path.exists() else []

    def stored(self) -> list[int]:
        return sorted(int(line.removeprefix("body ")) for line in self.lines("table"))

    def rejected(self) -> list[tuple[int, str, str]]:
        return [
            (
                int(str(each.message.body).removeprefix("body ")),
                each.exception_class,
                each.exception_message,
            )
            for each in rejected_messages(self.manifest)
        ]


@pytest.fixture
def job(open_batch: OpenBatch, rows: MakeRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(sys, "argv", ["x"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with open_batch() as batch:
        batch.seal(rows(range(7)))
        batch.seal(rows(range(7, 20)))
        return Job(batch.complete(), tmp_path / "job")


@pytest.mark.parametrize(
    "poison", [[], [0], [19], [7], [3, 4], [0, 19], [6, 7, 8], [1, 5, 9, 13, 17], list(range(20))]
)
def test_what_fails_is_turned_away_and_all_others_are_stored_once(job: Job, poison: list[int]) -> None:
    job.submit(poison)
    assert job.stored() == [number for number in range(20) if number not in poison]
    assert job.rejected() == [(number, "ValueError", f"body {number} is poison") for number in poison]
    done = Done.read(job.manifest.folder)
    assert done is not None
    assert (done.rows, done.stored.get("/t", 0), done.rejected) == (20, 20 - len(poison), len(poison))
    runs = job.lines("runs")
    assert len(runs) == len(set(runs))
    if not poison:
        assert (runs, parts(job.manifest.folder)) == (["b1"], [])
    job.submit(poison)
    assert job.lines("runs") == runs


def test_a_half_that_must_fail_is_not_run_before_it_is_split(job: Job) -> None:
    job.submit([19])
    runs = [name.partition("~~rows-")[2] for name in job.lines("runs")]
    assert runs == ["", "0-9", "10-14", "15-17", "18-18", "19-19"]
    assert dict(lineage(job.manifest))["10-19"] == "split"
    assert dict(lineage(job.manifest))["19-19"] == "failed: ValueError: body 19 is poison"


@pytest.mark.parametrize("dies_at", range(1, 14))
def test_wherever_the_driver_dies_the_next_attempt_goes_on(job: Job, dies_at: int) -> None:
    with pytest.raises(RuntimeError):
        job.submit([2, 3, 11], dies_at=dies_at)
    assert Done.read(job.manifest.folder) is None
    job.submit([2, 3, 11])
    assert job.stored() == [number for number in range(20) if number not in {2, 3, 11}]
    assert [number for number, *_ in job.rejected()] == [2, 3, 11]


def test_a_job_that_fails_on_everything_turns_nothing_away(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="78"):
        job.submit(range(20), splits=5)
    assert "5 splits were not enough" in capsys.readouterr().err
    assert Done.read(job.manifest.folder) is None
    with pytest.raises(SystemExit, match="78"):
        job.submit(range(20), splits=5)
    # What was split is a matter of parts from now on: some may be stored.
    with pytest.raises(SpoolError, match="was split"):
        Batch(job.manifest, take_fence(job.manifest.folder))
    job.submit([], splits=5)  # mended
    assert job.stored() == list(range(20))
    assert job.rejected() == []


def test_a_job_that_stores_before_it_fails_is_not_bisected(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="78"):
        job.submit([4], stores_first=True)
    assert "can't be bisected: the script stored rows in /t before it failed" in capsys.readouterr().err
    assert parts(job.manifest.folder) == []


def test_an_attempt_that_was_overtaken_stops(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow_provider_jmsjca.spark.jobs import bisecting  # noqa: PLC0415 - patched

    make_part = bisecting.make_part

    def overtaken(manifest: Manifest, rows: object, fence: int) -> Manifest:
        if len(parts(manifest.folder)) == 2:
            take_fence(manifest.folder)
        return make_part(manifest, rows, fence)  # type: ignore[arg-type]

    monkeypatch.setattr(bisecting, "make_part", overtaken)
    with pytest.raises(SystemExit, match="75"):
        job.submit([4])
    assert "FencedError" in capsys.readouterr().err
    monkeypatch.setattr(bisecting, "make_part", make_part)
    job.submit([4])
    assert job.stored() == [number for number in range(20) if number != 4]
