"""The spool's upkeep as users meet it: commands, the maintenance DAG, and runs that adopt batches."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.cli import cli_parser
from airflow.sdk import DAG
from airflow.utils.state import TaskInstanceState

from airflow_provider_jmsjca import (
    Destination,
    JmsCollectOperator,
    JmsMessage,
    JmsSpoolMaintenanceOperator,
    Manifest,
    SpoolError,
)
from tests.airflow.task_runs import execute
from tests.internals.operators import collect as collect_module
from tests.internals.spool import Done, Row, SpoolBatch, TaskKey, take_fence

Publish = Callable[..., None]
ORDERS = Destination.queue("orders")
DAY = 24 * 3600
pytestmark = [
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


def left(spool: Path, run: str, *, dag_id: str = "d", complete: bool = False, done: bool = False) -> str:
    """Leave a batch of two messages, as a run does that was killed, or that came so far."""
    batch_id = TaskKey(dag_id=dag_id, run_id=run, task_id="collect").batch_id()
    with SpoolBatch(spool, batch_id, source=str(ORDERS), activation=f"jms_test {ORDERS}") as batch:
        messages = [JmsMessage.text("x", message_id=f"{run}-{n}", destination=ORDERS) for n in range(2)]
        batch.seal([Row(message, 0) for message in messages])
        if complete:
            manifest = batch.complete()
            if done:
                take_fence(manifest.folder)
                counts = {"rows": 2, "stored": {"/t": 2}, "rejected": 0, "rejects": ()}
                Done(batch_id=batch_id, fence=1, finished="2026-01-01", **counts).create(manifest.folder)  # type: ignore[arg-type]
    return batch_id


def age(spool: Path, seconds: float) -> None:
    """Make everything in the spool older."""
    moment = time.time() - seconds
    for path in spool.rglob("*"):
        os.utime(path, (moment, moment))


def context(run: str) -> Any:
    return {"ti": SimpleNamespace(dag_id="d", run_id=run, task_id="collect", map_index=-1)}


def collecting(spool: Path, **named: Any) -> JmsCollectOperator:
    return JmsCollectOperator(
        task_id="collect",
        jms_conn_id="jms_test",
        destination="orders",
        idle_time=0.1,
        spool_path=str(spool),
        **named,
    )


@pytest.mark.usefixtures("server")
def test_a_later_run_adopts_what_earlier_runs_of_the_task_left(
    tmp_path: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "Büro #1 [a]"
    old, foreign = left(spool, "old"), left(spool, "old", dag_id="another")
    age(spool, 100)
    fresh = left(spool, "fresh")
    publish("one")
    report = collecting(spool).execute(context("r0"))
    assert (report["adopted"], sorted(report["unfinished"])) == ([], sorted([old, foreign, fresh]))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    publish("two")
    with monkeypatch.context() as patched:
        patched.setattr(collect_module, "adopt", killed)
        with pytest.raises(KeyboardInterrupt):
            collecting(spool, adopt_after=50).execute(context("r1"))
    # Somebody else finishes the batch before the retry: the run still answers for it.
    assert collect_module.adopt(spool, old) is not None
    for _ in range(2):
        report = collecting(spool, adopt_after=50).execute(context("r1"))
        assert report["rows"] == 1
        assert [(each["batch_id"], each["rows"]) for each in report["adopted"]] == [(old, 2)]
        assert sorted(report["unfinished"]) == sorted([foreign, fresh])
        Manifest.read(report["adopted"][0]["manifest"]).verify()
    # Without a message of its own it adopts as well.
    report = collecting(spool, adopt_after=0).execute(context("r2"))
    assert (report["manifest"], report["rows"]) == (None, 0)
    assert [each["batch_id"] for each in report["adopted"]] == [fresh]
    assert report["unfinished"] == [foreign]


@pytest.mark.usefixtures("server")
def test_what_cannot_be_adopted_stops_nobody(
    tmp_path: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = left(tmp_path, "old")

    def damaged(*_: object) -> None:
        raise SpoolError("segment-000000.parquet: damaged")

    monkeypatch.setattr(collect_module, "adopt", damaged)
    publish("one")
    report = collecting(tmp_path, adopt_after=0).execute(context("r1"))
    assert (report["rows"], report["adopted"], report["unfinished"]) == (1, [], [name])


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A month-old done batch, a fresh one, one left unfinished."""
    spool = tmp_path / "Ablage [1] 100% #"
    left(spool, "done", complete=True, done=True)
    left(spool, "unfinished")
    age(spool, 30 * DAY)
    left(spool, "fresh", complete=True, done=True)
    monkeypatch.setenv("AIRFLOW__JMSJCA__SPOOL_PATH", str(spool))
    return spool


@pytest.mark.usefixtures("metadata")
def test_the_maintenance_dag_prunes_and_names_what_needs_care(spool: Path) -> None:
    path = Path(__file__).parents[3] / "example_dags" / "example_jms_spool_maintenance.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dag: DAG = module.dag
    outcome = execute(dag, "keep_in_order")
    assert outcome.state == TaskInstanceState.SUCCESS
    assert outcome.value["bytes"] > 0
    assert {name: value for name, value in outcome.value.items() if name != "bytes"} == {
        "batches": 3,
        "states": {"done": 1, "pruned": 1, "unfinished": 1},
        "pruned": ["d~~done~~collect~~-1"],
        "needs_care": ["d~~unfinished~~collect~~-1"],
        "may_need_care": [],
    }
    (spool / "d~~fresh~~collect~~-1" / "segment-000000.parquet").write_bytes(b"x")
    assert execute(dag, "keep_in_order").state == TaskInstanceState.FAILED


def test_a_batch_that_no_job_has_done_is_named_from_the_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(JmsSpoolMaintenanceOperator, "log", logging.getLogger("upkeep"))
    caplog.set_level(logging.INFO, "upkeep")
    old, fresh = left(tmp_path, "old", complete=True), left(tmp_path, "fresh", complete=True)
    for name in (old, fresh):
        take_fence(tmp_path / name)
    age(tmp_path / old, 7200)
    upkeep = JmsSpoolMaintenanceOperator(
        task_id="upkeep", spool_path=str(tmp_path), care_after=timedelta(hours=1), older_than=timedelta(0)
    )
    report = upkeep.execute({})
    assert (report["needs_care"], report["may_need_care"]) == ([old], [fresh])
    named = {
        record.levelno: record.getMessage() for record in caplog.records if "undone" in record.getMessage()
    }
    assert f"Batch {old} is undone" in named[logging.WARNING]
    assert "kept 1 undone batch: it changed within the last 60 minutes" in caplog.text
    assert "kept 1 undone batch: it needs attention" in caplog.text
    assert f"Batch {fresh} is undone" in caplog.text
    assert "`care_after` is 3600 s" in caplog.text


def run(*arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", "spool", *arguments])
    parsed.func(parsed)


def test_the_commands_list_show_verify_prune_and_adopt(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*arguments: str) -> Any:
        run(*arguments, "-o", "json")
        return json.loads(capsys.readouterr().out)

    done, fresh, unfinished = (f"d~~{name}~~collect~~-1" for name in ("done", "fresh", "unfinished"))
    listed = printed("list")
    assert [(row["batch"], row["state"], row["messages"]) for row in listed] == [
        (done, "done", "2"),
        (fresh, "done", "2"),
        (unfinished, "unfinished", "2"),
    ]
    assert [row["batch"] for row in printed("list", "--state", "unfinished", "undone")] == [unfinished]
    run("list", "-o", "yaml")
    assert yaml.safe_load(capsys.readouterr().out) == listed
    run("list", "-o", "table")
    assert "unfinished" in capsys.readouterr().out
    shown = {row["name"]: row["value"] for row in printed("show", fresh)}
    assert (shown["stored in /t"], shown["run"], shown["fault"]) == ("2", "fresh", "")
    assert shown["folder"] == str(spool / fresh)

    assert [row["batch"] for row in printed("prune", "--dry-run")] == [done]
    run("prune", "--older-than", "0", "--dry-run")
    kept = capsys.readouterr().err.splitlines()
    assert kept == [
        (
            "kept 1 done batch: within the horizon (the newest 200,000 messages of the last 7 days), by "
            "which repetitions are recognised"
        ),
        "kept 1 unfinished batch: it needs attention, see `airflow jms spool show`",
    ]
    assert [row["state"] for row in printed("list")] == ["done", "done", "unfinished"]
    assert [row["batch"] for row in printed("prune")] == [done]
    assert [row["state"] for row in printed("list")] == ["pruned", "done", "unfinished"]
    run("prune", "--dry-run")
    nothing = capsys.readouterr()
    assert nothing.out == ""
    assert f"note: nothing to remove: 2 batches looked at in the spool {spool}; the oldest, " in nothing.err
    assert "days ago, and batches go after 7 days (--older-than)" in nothing.err

    run("adopt", unfinished)
    manifest = Manifest.read(capsys.readouterr().out.strip())
    assert (manifest.folder, manifest.rows) == (spool / unfinished, 2)
    assert [row["fault"] for row in printed("verify")] == ["none"] * 3
    (spool / fresh / "segment-000000.parquet").write_bytes(b"x")
    with pytest.raises(SystemExit, match="1"):
        run("verify", "-o", "json")
    faults = {row["batch"]: row["fault"] for row in json.loads(capsys.readouterr().out)}
    assert f"airflow jms spool salvage '{fresh}'" in faults.pop(fresh)
    assert set(faults.values()) == {"none"}
    assert [(row["batch"], row["segment"], row["messages"]) for row in printed("salvage", fresh)] == [
        (fresh, "segment-000000.parquet", "2")
    ]
    shown = {row["name"]: row["value"] for row in printed("show", fresh)}
    assert (shown["messages"], shown["segment 0"], shown["fault"]) == ("0", "damaged, given up", "")
    run("salvage", fresh, unfinished)
    assert f"note: {unfinished}: no segment is damaged" in capsys.readouterr().err
    assert [row["fault"] for row in printed("verify")] == ["none"] * 3
    with pytest.raises(SystemExit):
        run("show", "nobody")
    assert "there is no batch 'nobody'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("list", "--spool-path", "/nowhere")
    assert "/nowhere" in capsys.readouterr().err
