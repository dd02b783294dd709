"""Replays as users start them: the operator and the command. The job is a stand-in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.cli import cli_parser
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_jmsjca import (
    ConfigurationError,
    Destination,
    JmsMessage,
    JmsReplayOperator,
    Manifest,
    MemoryBroker,
    manifest_messages,
)
from tests.internals.operators import spark as module
from tests.internals.spool import Done, RejectsFile, Row, SpoolBatch, take_fence

Make = Callable[..., JmsReplayOperator]
pytestmark = [
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


def done(manifest: Manifest, fence: int, *rejected: int) -> None:
    """Leave a batch as a job does that rejects messages of the first segment."""
    lines = [
        json.dumps(
            {"segment": 0, "position": place, "exception_class": "x.Y", "exception_message": "too big"}
        )
        + "\n"
        for place in rejected
    ]
    path = Path(str(manifest.folder)) / f"rejects-{fence:06d}-000000.jsonl"
    path.write_text("".join(lines))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    Done(
        batch_id=manifest.batch_id,
        fence=fence,
        rows=manifest.rows,
        stored={"/data/orders": manifest.rows - len(rejected)},
        rejected=len(rejected),
        rejects=(RejectsFile(file=path.name, rows=len(rejected), sha256=digest),) if rejected else (),
        finished="2026-01-01T00:00:00+00:00",
    ).create(manifest.folder)


class StandInHook:
    """In place of `spark-submit`: a job that stores all messages but the first."""

    submitted: list[list[str]]
    fails = False
    _submit_sp = None

    def __init__(self, *, application_args: list[str], **_: Any) -> None:
        self._arguments = application_args

    def ship_library(self, _: Path) -> None:
        pass

    def watch_address(self, *_: Any) -> None:
        pass

    def submit(self, _: str, *, start_new_session: bool) -> None:
        assert start_new_session
        self.submitted.append(self._arguments)
        if self.fails:
            raise AirflowException("spark-submit was killed")
        named = dict(zip(self._arguments[:6:2], self._arguments[1:6:2], strict=True))
        done(Manifest.read(named["--manifest"]), int(named["--fence"]), 0)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> type[StandInHook]:
    hook = type("Hook", (StandInHook,), {"submitted": []})
    monkeypatch.setattr(module, "spark_submit_hook", lambda: hook)
    fields = {"conn_type": "spark", "host": "local[1]"}
    for name in ("SPARK_DEFAULT", "SPARK_TEST"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(fields))
    return hook


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """A batch of four messages, two of which were rejected."""
    place = tmp_path / "spool"
    with SpoolBatch(place, "b1", source="queue://orders", activation="a") as batch:
        orders = Destination.queue("orders")
        messages = [JmsMessage.text(f"body {n}", message_id=f"ID:{n}", destination=orders) for n in range(4)]
        batch.seal([Row(message, 1_700_000_000_000_000) for message in messages])
        manifest = batch.complete()
    done(manifest, take_fence(manifest.folder), 1, 3)
    return place


@pytest.fixture
def load(spool: Path) -> Make:
    def make(**arguments: Any) -> JmsReplayOperator:
        given: dict[str, Any] = {
            "batches": ["b1"], "rejects": True, "jms_conn_id": "jms_test", "spark_conn_id": "spark_test",
            "spool_path": str(spool), "application_args": ["--table", "/data/orders"],
        }  # fmt: skip
        return JmsReplayOperator(task_id="again", **given | arguments)

    return make


def context(run: str = "monday") -> Any:
    instance = SimpleNamespace(
        dag_id="d", run_id=run, task_id="again", map_index=-1, try_number=1, xcom_push=lambda *_: None
    )
    return {"ti": instance, "task_instance": instance}


def test_a_retry_continues_the_replay_and_another_run_is_another_one(
    server: MemoryBroker, job: type[StandInHook], load: Make
) -> None:
    job.fails = True
    with pytest.raises(AirflowException, match="was killed"):
        load().execute(context())
    job.fails = False
    report = load().execute(context())
    assert (report["rows"], report["replay_of"], report["stored"]) == (2, ["b1"], {"/data/orders": 1})
    assert (report["rejected"], report["dead_lettered"], report["reasons"]) == (1, 1, {"too big": 1})
    replay = Manifest.read(report["manifest"])
    assert [each.message.body for each in manifest_messages(replay)] == ["body 1", "body 3"]
    assert [message.body for message in server.messages("orders.dlq")] == ["body 1"]

    assert load().execute(context()) == report, "a task that is cleared changes nothing"
    named = ["--batch-id", report["batch_id"], "--fence", "1", "--table", "/data/orders"]
    assert [each[2:] for each in job.submitted] == [named, [*named[:3], "2", *named[4:]]]
    assert load().execute(context("tuesday"))["batch_id"] != report["batch_id"]


@pytest.mark.usefixtures("server")
def test_without_a_message_the_task_is_skipped(job: type[StandInHook], load: Make) -> None:
    with pytest.raises(AirflowSkipException, match="no message is selected"):
        load(batches=(), since="2000-01-01T00:00:00Z", until="2000-01-02 00:00:00+00:00").execute(context())
    assert not job.submitted


@pytest.mark.usefixtures("server", "job")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batches": ()}, "neither given"),
        ({"batches": "absent"}, "there is no batch 'absent'"),
        ({"batches": (), "since": "yesterday"}, "since: 'yesterday' is not a time; expected ISO 8601"),
        ({"dead_letter_destination": "queue://orders"}, "which is consumed itself"),
    ],
)
def test_what_cant_be_replayed_is_refused(load: Make, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said) as caught:
        load(**arguments).execute(context())
    assert isinstance(caught.value, AirflowFailException) == ("absent" not in said)


def test_a_replay_receives_nothing(load: Make) -> None:
    with pytest.raises(
        ConfigurationError, match="max_messages: not allowed, because a replay receives nothing"
    ):
        load(max_messages=1)


def run(*arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", "spool", *arguments])
    parsed.func(parsed)


@pytest.mark.usefixtures("server")
def test_the_command_lists_and_replays_once(
    job: type[StandInHook], spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay = ["replay", "b1", "--rejects", "--spool-path", str(spool), "--conn-id", "jms_test", "-o", "json"]
    run(*replay, "--dry-run")
    listed = json.loads(capsys.readouterr().out)
    assert listed == [{"batch": "b1", "source": "queue://orders", "messages": "4", "to_replay": "2"}]

    arguments = "--job-args=--table '/data/new orders' --schema 'id LONG NOT NULL'"
    for _ in range(2):
        run(*replay, arguments)
        said = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)}
        assert (said["replay_of"], said["rows"], said["rejected"]) == ("b1", "2", "1")
        assert said["rejected, too big"] == "1"
    (submitted,) = job.submitted
    assert submitted[6:] == ["--table", "/data/new orders", "--schema", "id LONG NOT NULL"]
    run("show", said["batch_id"], "--spool-path", str(spool), "-o", "json")
    shown = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert (shown["replay of rejects of"], shown["state"]) == ("b1", "done")
    # Other arguments are another replay, and so is another name.
    run(*replay, "--job-args=--table=/data/other")
    run(*replay, "--job-args=--table=/data/other", "--name", "again")
    assert len(job.submitted) == 3
    capsys.readouterr()

    for wrong, error in (
        (["--job-args='"], "--job-args: No closing quotation"),
        (["--since", "x"], "is not a time"),
    ):
        with pytest.raises(SystemExit):
            run(*replay, *wrong)
        assert error in capsys.readouterr().err
    job.fails = True
    with pytest.raises(SystemExit):
        run(*replay, "--job-args=--table=/data/fails")
    assert "error: spark-submit was killed" in capsys.readouterr().err
    run("replay", "--since", "2000-01-01T00:00:00Z", "--until", "2000-01-02T00:00:00Z", *replay[3:])
    assert "note: no message is selected" in capsys.readouterr().err
