"""`airflow jms doctor` finds prepared failures: each with its cause and the command that fixes it."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.cli import cli_parser
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_jmsjca import (
    ActivationKind,
    JmsActivationTrigger,
    JmsHook,
    JmsMessage,
    RunReport,
    RunStatus,
    WantedState,
    open_store,
)
from tests.airflow.task_runs import serialized
from tests.servers.broker import Broker
from tests.servers.fixtures import PrivateBroker
from tests.servers.rabbitmq import RabbitMQ

pytestmark = [
    pytest.mark.usefixtures("metadata"),
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
CONN_ID = "jms_doctor"
HOSTILE = "\x1b[31mred\x9b [bold]"

Diagnose = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture(autouse=True)
def _installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__SPOOL_PATH", str(tmp_path / "spool"))
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    open_store(f"sqlite:///{tmp_path / 'store.db'}").close()


@pytest.fixture
def diagnose(capsys: pytest.CaptureFixture[str]) -> Diagnose:
    """A function that runs the command and returns its exit code and findings."""

    def run(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        parsed = cli_parser.get_parser().parse_args(["jms", "doctor", *arguments, "--output", "json"])
        capsys.readouterr()
        code = 0
        try:
            parsed.func(parsed)
        except SystemExit as error:
            code = int(str(error.code))
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return code, found

    return run


@pytest.fixture
def connection(activemq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    define(activemq, monkeypatch)


def define(broker: Broker, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    host, port = broker.address()
    given = {"conn_type": "jms", "host": host, "port": port, "login": broker.username}
    monkeypatch.setenv(
        f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps(given | {"password": broker.password} | changes)
    )


def command(*arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", "doctor", *arguments])
    parsed.func(parsed)


def send(queue: str, *messages: JmsMessage) -> None:
    with JmsHook(CONN_ID).get_conn() as connection, connection.session() as session:
        for message in messages:
            session.send(f"queue://{queue}", message)


def triggerer(heartbeat: datetime) -> None:
    from airflow.jobs.job import Job  # noqa: PLC0415 - after the home is set
    from airflow.utils.session import create_session  # noqa: PLC0415 - as above

    with create_session() as session:
        session.add(
            Job(job_type="TriggererJob", state="running", latest_heartbeat=heartbeat, hostname="host-1")
        )


def watched(queue: str) -> str:
    """Return a DAG, paused as every new one is, that messages of a queue start."""
    dag_id = f"dag_{uuid.uuid4().hex[:8]}"
    trigger = JmsActivationTrigger(jms_conn_id=CONN_ID, destination=f"queue://{queue}")
    asset = Asset(f"orders_{dag_id}", watchers=[AssetWatcher(name="orders", trigger=trigger)])
    serialized(DAG(dag_id, schedule=asset))
    return dag_id


def finding(found: list[dict[str, Any]], text: str) -> dict[str, Any]:
    [one] = [each for each in found if text in each["symptom"]]
    return one


@pytest.mark.usefixtures("connection")
def test_a_healthy_installation_has_no_findings(diagnose: Diagnose) -> None:
    triggerer(datetime.now(UTC))
    code, found = diagnose("--conn-id", CONN_ID)
    found = [each for each in found if "dead-letter queue" not in each["symptom"]]  # of other tests
    assert found == []
    assert code in {0, 1}


def test_a_rotated_password(activemq: Broker, monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose) -> None:
    define(activemq, monkeypatch, password="of-yesterday")
    monkeypatch.setenv("AIRFLOW_CONN_UNREADABLE", '{"conn_type": "jms", "extra": "{"')
    code, found = diagnose()
    one = finding(found, "cannot log in")
    assert code == 1
    assert "refuse" in one["cause"]
    assert f"airflow jms check {CONN_ID}" in one["fix"]
    assert "of-yesterday" not in json.dumps(found)
    assert (one["part"], one["because_of_this"]) == ("Brokers", [])


def test_what_follows_from_a_cause_is_below_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    diagnose: Diagnose,
    capsys: pytest.CaptureFixture[str],
) -> None:
    host, port = "127.0.0.1", 1  # nobody listens there
    lost = {"conn_type": "jms", "host": host, "port": port}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps(lost))
    error = finding(diagnose("--conn-id", CONN_ID)[1], "cannot log in")["cause"]
    with contextlib.closing(open_store(f"sqlite:///{tmp_path / 'store.db'}")) as store:
        now = store.owners.now()
        store.activations.report(
            [
                RunReport(
                    run=name,
                    activation=name,
                    kind=ActivationKind.LISTENER,
                    owner="orders.load",
                    broker=f"stomp://{host}:{port}",
                    destination="queue://orders",
                    status=RunStatus.CONNECTING,
                    started_at=now,
                    since=now,
                    last_error=text,
                )
                for name, text in [
                    *((f"orders.{n}", error) for n in range(7)),
                    ("prices", f"KeyError: {HOSTILE}"),
                ]
            ]
        )
        code, found = diagnose("--conn-id", CONN_ID)
        assert code == 1
        login = finding(found, "cannot log in")
        assert login["cause"] == error
        assert len(login["because_of_this"]) == 7
        assert login["because_of_this"][0]["fix"] == "airflow jms activations show orders.0"
        assert finding(found, "activation prices")["cause"] == f"KeyError: {HOSTILE}"
        for output in ("table", "plain"):
            with pytest.raises(SystemExit):
                command("--conn-id", CONN_ID, "--output", output)
            shown = capsys.readouterr().out
            assert "follows" in shown
            assert not set(shown) & set("\x1b\x9b")
    # Only the last, plain text, keeps a cell on one line.
    assert shown.index("cannot log in") < shown.index(
        "because of this: activations that are not connected: 7"
    )
    assert shown.count("- activation orders.") == 5
    assert "- and 2 more" in shown


@pytest.mark.usefixtures("connection")
def test_a_paused_dag_and_a_dead_triggerer(diagnose: Diagnose) -> None:
    queue = f"doctor.{uuid.uuid4().hex[:8]}"
    send(queue, JmsMessage.text("a"), JmsMessage.text("b"))
    triggerer(datetime.now(UTC) - timedelta(hours=1))
    dag_id = watched(queue)
    code, found = diagnose("--conn-id", CONN_ID)
    assert code == 1
    paused = finding(found, dag_id)
    assert f"2 messages waiting on queue://{queue}" in paused["symptom"]
    assert (paused["cause"], paused["fix"]) == ("the DAG is paused", f"airflow dags unpause {dag_id}")
    dead = finding(found, "no triggerer is alive")
    assert "host-1 sent its last heartbeat" in dead["cause"]
    assert (dead["finding"], dead["fix"]) == ("problem", "airflow triggerer")


@pytest.mark.usefixtures("connection")
def test_a_poison_message(diagnose: Diagnose) -> None:
    queue = f"doctor.{uuid.uuid4().hex[:8]}.dlq"
    reason = {"JMS_Sun_JMSJCA_ExceptionClass": "ValueError", "JMS_Sun_JMSJCA_ExceptionMessage": HOSTILE}
    send(queue, JmsMessage.text("{", reason))
    code, found = diagnose("--conn-id", CONN_ID)
    one = finding(found, queue)
    assert code == 1
    assert "1 with: ValueError" in one["cause"]
    assert one["fix"].startswith(f"airflow jms dlq show --conn-id {CONN_ID} {queue} ")
    assert "; then dlq edit " in one["fix"]


@pytest.mark.usefixtures("connection")
def test_a_full_disk(diagnose: Diagnose, tmp_path: Path) -> None:
    """More space is asked for than any disk has."""
    code, found = diagnose("--conn-id", CONN_ID, "--min-free", "1e8")
    one = finding(found, f"the disk of the spool {tmp_path / 'spool'}")
    assert code == 1
    assert "MiB are free" in one["cause"]
    assert one["fix"].startswith("make room on the disk; what fills it: du -xah ")


def test_a_blocked_broker(
    private_broker: PrivateBroker, monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose
) -> None:
    broker = private_broker("rabbitmq")
    assert isinstance(broker, RabbitMQ)
    url = f"http://{broker.address()[0]}:{broker.ports['management']}"
    define(broker, monkeypatch, extra={"management_url": url})
    broker.raise_alarm()
    code, found = diagnose("--conn-id", CONN_ID)
    one = finding(found, "the broker blocks producers")
    assert code == 1
    assert "memory of" in one["cause"]
    assert "rabbitmqctl set_vm_memory_high_watermark" in one["fix"]
    assert one["fix"].endswith("; for the figures: rabbitmq-diagnostics alarms, rabbitmqctl status")


def test_the_store_and_what_cannot_be_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose
) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps({"conn_type": "jms", "host": "vm"}))
    with contextlib.closing(open_store(f"sqlite:///{tmp_path / 'store.db'}")) as store:
        store.activations.request_state("orders", WantedState.STOPPED, reason=HOSTILE, asked_by="the handler")
    _, found = diagnose()
    assert finding(found, "activation orders is stopped")["fix"] == "airflow jms activations resume orders"
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", f"sqlite:///{tmp_path / 'file' / 'store.db'}")
    code, found = diagnose("--conn-id", CONN_ID)
    assert "airflow jms store" in finding(found, "the store")["fix"]
    assert code


def test_a_dag_file_that_cannot_be_imported(diagnose: Diagnose) -> None:
    from airflow.models.errors import ParseImportError  # noqa: PLC0415 - after the home is set
    from airflow.utils.session import create_session  # noqa: PLC0415 - as above

    tracebacks = {"orders.py": "  JmsListenOperator(\nTypeError: no spec\n", "other.py": "SyntaxError: other"}
    with create_session() as session:
        for name, text in tracebacks.items():
            session.add(ParseImportError(filename=name, bundle_name="dags", stacktrace=text))
    code, found = diagnose()
    one = finding(found, "the DAGs of file 'orders.py'")
    assert code == 1
    assert one["cause"] == "the file cannot be imported: TypeError: no spec"
    assert one["fix"] == "airflow dags list-import-errors"
    assert not [each for each in found if "other.py" in each["symptom"]]
    _, with_notes = diagnose("--notes")
    assert finding(with_notes, "other.py")["finding"] == "note"


def test_a_store_that_nothing_has_used_yet_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, diagnose: Diagnose
) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", f"sqlite:///{tmp_path / 'new.db'}")
    code, found = diagnose()
    assert not [each for each in found if "store has no tables" in each["symptom"]]
    _, with_notes = diagnose("--notes")
    assert finding(with_notes, "the store has no tables yet")["finding"] == "note"
    assert code == 0


@pytest.mark.usefixtures("connection")
def test_events_that_were_stored_while_a_dag_was_paused(diagnose: Diagnose) -> None:
    """Airflow stores an event of a DAG paused a moment ago, and requests no run for it."""
    from airflow.models.asset import AssetEvent, AssetModel, DagScheduleAssetReference  # noqa: PLC0415 - after the home is set
    from airflow.models.dag import DagModel  # noqa: PLC0415 - as above
    from airflow.utils.session import create_session  # noqa: PLC0415 - as above
    from sqlalchemy import select, update  # noqa: PLC0415 - as above

    dag_id = watched(f"doctor.{uuid.uuid4().hex[:8]}")
    with create_session() as session:
        asset = session.scalar(select(AssetModel).where(AssetModel.name == f"orders_{dag_id}"))
        assert asset is not None
        later = datetime.now(UTC) + timedelta(seconds=1)
        session.add(AssetEvent(asset_id=asset.id, extra={}, timestamp=later))
    assert not [each for each in diagnose("--conn-id", CONN_ID)[1] if dag_id in each["symptom"]]
    with create_session() as session:
        # As if the DAG had been scheduled by the asset, and the event stored, ten minutes earlier.
        for table, column in ((DagScheduleAssetReference, "created_at"), (AssetEvent, "timestamp")):
            for row in session.scalars(select(table).where(table.asset_id == asset.id)):
                setattr(row, column, getattr(row, column) - timedelta(minutes=10))
    code, found = diagnose("--conn-id", CONN_ID)
    assert code == 1
    assert finding(found, dag_id)["symptom"].endswith("; 1 event without a run")
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(is_paused=False))
    unpaused = finding(diagnose("--conn-id", CONN_ID)[1], dag_id)
    assert unpaused["symptom"] == f"asset 'orders_{dag_id}', DAG '{dag_id}'; 1 event without a run"
    assert "Create Asset Event" in unpaused["fix"]
