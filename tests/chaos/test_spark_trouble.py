"""The disk is full, or a store or database can't be reached for a while: nothing is lost or stored twice.

The full disk is a small file system in memory, which only root can mount; elsewhere those tests are left out.
`JMSJCA_CHAOS=full` tries each kind of table, and keeps stores out of reach for 30 seconds.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_jmsjca import Destination, Manifest, connect
from tests.chaos.collecting import CollectorProcess, stored_numbers
from tests.chaos.conftest import Report
from tests.chaos.sinks import (
    DeltaSink,
    JdbcSink,
    ParquetSink,
    Sink,
    check_stored_once,
    numbered_batch,
    submit,
)
from tests.chaos.spark_processes import soon
from tests.chaos.test_collect_kill import send
from tests.internals.spool import MANIFEST, Done, ObjectPath, exists, names_in
from tests.servers.broker import Broker
from tests.servers.ports import HOST
from tests.servers.postgres import Postgres
from tests.servers.proxy import TcpProxy
from tests.servers.s3 import BUCKET, S3
from tests.spark.conftest import s3a_jars

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES = 20_000 if FULL else 5_000
AWAY_SECONDS = 30.0
NOBODY = (HOST, 9)
SCHEMA = "id LONG NOT NULL, text STRING"
_TEXT_BYTES = 1_000
_DIGITS = 1_000
_SMALL, _LARGE = 1024 * 1024, 1024 * 1024 * 1024

pytestmark = pytest.mark.timeout(1200)


class Disk:
    """A file system of a size that can be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._mount("-t", "tmpfs", "-o", f"size={_SMALL}", "none")

    def resize(self, size: int) -> None:
        """Let it have so many bytes; less than it holds is refused."""
        self._mount("-o", f"remount,size={size}")

    def fill(self) -> None:
        """Leave no room for any file that has something in it."""
        found = os.statvfs(self.folder)
        self.resize((found.f_blocks - found.f_bfree) * found.f_frsize)

    def _mount(self, *arguments: str) -> None:
        subprocess.run(["mount", *arguments, self.folder], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    made = Disk(tmp_path / "disk")
    yield made
    subprocess.run(["umount", "--lazy", made.folder], check=True)


def run(job: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a job; one that doesn't end is killed."""
    try:
        return job.wait(600)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait(10)


def test_a_collector_whose_disk_is_full_acknowledges_nothing_more(
    disk: Disk, activemq: Broker, report: Report
) -> None:
    queue = f"full.{uuid.uuid4().hex[:8]}"
    source, batch = Destination.queue(queue), disk.folder / "spool" / "b1"
    digits = random.Random(1)  # noqa: S311 - so that they can't be compressed
    send(
        activemq,
        source,
        (number * 10**_DIGITS + digits.randrange(10**_DIGITS) for number in range(MESSAGES)),
    )

    def collector() -> CollectorProcess:
        return CollectorProcess(activemq, queue, batch, max_messages=MESSAGES, segment_messages=250)

    first = collector()
    assert first.exit_code() != 0
    assert not exists(batch / MANIFEST)
    before = first.segments
    assert before > 0
    disk.resize(_LARGE)
    found = collector().result()
    assert sorted(number // 10**_DIGITS for number in stored_numbers([batch])) == list(range(MESSAGES))
    connection = connect(activemq.settings())
    assert list(connection.browse(source)) == []
    connection.close()
    report(
        f"disk full, collector: {MESSAGES} messages, {before} segments sealed before, "
        f"{found['duplicates']} duplicates dropped; 0 lost, 0 twice"
    )


@pytest.mark.parametrize("full", ["parquet", "delta", "spool"] if FULL else ["parquet"])
def test_a_job_whose_disk_is_full_fails_and_another_one_stores_the_batch_once(
    full: str, disk: Disk, tmp_path: Path, report: Report
) -> None:
    log, place = tmp_path / "log", tmp_path
    if full == "spool":
        disk.resize(_LARGE)
        place = disk.folder
    manifest = numbered_batch(place / "spool", MESSAGES, _TEXT_BYTES)
    table = (tmp_path if full == "spool" else disk.folder) / "table"
    sink: Sink = DeltaSink(table) if full == "delta" else ParquetSink(table)
    if full == "spool":
        submit_once = submit(manifest, sink, log, schema=SCHEMA)  # what it writes into the spool are rejects
        soon(lambda: "Running Spark" in log.read_text(errors="replace"), "start of Spark", 300)
        disk.fill()
    else:
        submit_once = submit(manifest, sink, log, schema=SCHEMA)
    assert run(submit_once) != 0
    assert "No space left on device" in log.read_text(errors="replace")
    assert sink.ids() == []
    assert Done.read(manifest.folder) is None
    disk.resize(_LARGE)
    assert run(submit(manifest, sink, log, schema=SCHEMA)) == 0, log.read_text(errors="replace")[-4_000:]
    check_stored_once(manifest, sink, MESSAGES)
    report(f"disk full, {full}: {MESSAGES} messages; 0 lost, 0 twice")


def away_for_a_while(proxy: TcpProxy) -> threading.Timer:
    """Let nobody through to the server for `AWAY_SECONDS`."""
    there, proxy.target = proxy.target, NOBODY
    proxy.cut()
    back = threading.Timer(AWAY_SECONDS, setattr, (proxy, "target", there))
    back.start()
    return back


def attempts_until_stored(
    start: Callable[[], subprocess.Popen[bytes]], begun: Callable[[], object], proxy: TcpProxy
) -> int:
    """Submit a job as often as a task with retries would, while a server goes away; return how often."""
    job = start()
    soon(lambda: begun() or job.poll() is not None, "beginning of the work", 300)
    assert job.poll() is None, "window missed: the job had ended before the server went away"
    back = away_for_a_while(proxy)
    attempts = 1
    while run(job) != 0:
        attempts += 1
        assert attempts < 20
        job = start()
    back.join()
    return attempts


@pytest.mark.skipif(not FULL, reason="a minute: only with JMSJCA_CHAOS=full")
def test_a_database_that_can_not_be_reached_for_a_while(
    postgres: Postgres, tmp_path: Path, report: Report
) -> None:
    manifest, log = numbered_batch(tmp_path / "spool", MESSAGES), tmp_path / "log"
    with TcpProxy((HOST, postgres.ports["postgres"])) as proxy:
        sink = JdbcSink(postgres, f"away_{uuid.uuid4().hex[:8]}", proxy.port)
        attempts = attempts_until_stored(lambda: submit(manifest, sink, log), sink.begun, proxy)
    check_stored_once(manifest, sink, MESSAGES)
    sink.drop()
    report(f"database away for {AWAY_SECONDS:g} s: {MESSAGES} messages, {attempts} attempts; 0 lost, 0 twice")


@pytest.mark.skipif(not FULL, reason="half a minute: only with JMSJCA_CHAOS=full")
def test_a_task_whose_commit_is_not_confirmed_is_run_again(
    postgres: Postgres, tmp_path: Path, report: Report
) -> None:
    """As if its executor had died between commit and report: the rows are there when it runs again."""
    manifest, log = numbered_batch(tmp_path / "spool", MESSAGES), tmp_path / "log"
    seen = {b"INSERT INTO": False, b"COMMIT": False}

    def is_first_commit_of_rows(sent: bytes) -> bool:
        if seen[b"COMMIT"] or not (seen[b"INSERT INTO"] or b"INSERT INTO" in sent):
            return False
        seen[b"INSERT INTO"] = True
        seen[b"COMMIT"] = b"COMMIT" in sent
        return seen[b"COMMIT"]

    with TcpProxy((HOST, postgres.ports["postgres"]), is_first_commit_of_rows) as proxy:
        sink = JdbcSink(postgres, f"unconfirmed_{uuid.uuid4().hex[:8]}", proxy.port)
        assert run(submit(manifest, sink, log, master="local[1,4]")) == 0, log.read_text()[-4_000:]
    lost = log.read_text(errors="replace").count("Lost task ")
    assert lost == 1
    check_stored_once(manifest, sink, MESSAGES)
    sink.drop()
    report(f"commit without confirmation: {MESSAGES} messages, {lost} task run again; 0 lost, 0 twice")


@pytest.mark.skipif(not FULL, reason="a minute: only with JMSJCA_CHAOS=full")
def test_a_spool_in_s3_that_can_not_be_reached_for_a_while(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    with TcpProxy((HOST, s3.ports["s3"])) as proxy:
        for name, value in s3.options(f"http://{HOST}:{proxy.port}").items():
            monkeypatch.setenv(name.upper(), value)
        spool = ObjectPath.parse(f"s3://{BUCKET}/{uuid.uuid4().hex}/spool")
        manifest, log, sink = (
            numbered_batch(spool, MESSAGES),
            tmp_path / "log",
            ParquetSink(tmp_path / "table"),
        )
        direct = ObjectPath.parse(str(manifest.folder), s3.options())

        def start() -> subprocess.Popen[bytes]:
            conf = {"spark.hadoop.fs.s3a.path.style.access": "true"}
            return submit(manifest, sink, log, jars=[s3a_jars()], conf=conf)

        def rejecting() -> bool:
            return any(name.startswith("_rejects-") for name in names_in(direct))

        attempts = attempts_until_stored(start, rejecting, proxy)
        check_stored_once(Manifest.read(manifest.uri), sink, MESSAGES)
    report(f"S3 away for {AWAY_SECONDS:g} s: {MESSAGES} messages, {attempts} attempts; 0 lost, 0 twice")
