"""Findings that need neither Airflow nor a broker."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    ActivationKind,
    ActivationRun,
    ConnectionSettings,
    Destination,
    JmsMessage,
    Outgoing,
    RunReport,
    RunStatus,
    connect,
    list_activations,
    open_store,
)
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.errors import AuthenticationError, CapabilityError, JmsError
from airflow_provider_jmsjca.operating.doctor import broker as broker_examination
from airflow_provider_jmsjca.operating.doctor import spool as spool_examination
from airflow_provider_jmsjca.operating.doctor.broker import examine_broker
from airflow_provider_jmsjca.operating.doctor.dags import (
    Triggerer,
    WatchedDestination,
    examine_triggerer,
    examine_watchers,
)
from airflow_provider_jmsjca.operating.doctor.spool import examine_disk
from airflow_provider_jmsjca.operating.doctor.store import examine_store
from airflow_provider_jmsjca.operating.findings import Finding, Part, by_cause, by_kind
from airflow_provider_jmsjca.transports.memory.administration import MemoryAdministration

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def run(number: int, **changes: Any) -> RunReport:
    fields: dict[str, Any] = {
        "run": str(number),
        "activation": f"orders.{number}",
        "kind": ActivationKind.LISTENER,
        "owner": f"task listen.{number}",
        "destination": "queue://orders",
        "broker": "stomp://broker:61613",
        "status": RunStatus.UP,
        "started_at": NOON,
        "since": NOON,
    }
    return RunReport(**fields | changes)


def test_lost_activations_of_one_process_are_one_finding(tmp_path: Path) -> None:
    """A killed triggerer may have had hundreds."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    for where, numbers in (("host/7", range(3)), ("host/8", range(3, 4))):
        with contextlib.closing(open_store(url, where=where)) as store:
            store.activations.report([run(number) for number in numbers])
    with contextlib.closing(open_store(url)) as store:
        many, one = examine_store(store)
    assert many.symptom == "activations orders.0, orders.1 and orders.2 are lost"
    assert "sent its last heartbeat at 2" in many.cause
    assert many.fix == "clear or start again: task listen.0; the others: airflow jms activations list"
    assert one.symptom == "activation orders.3 is lost"
    assert one.fix == "clear or start again: task listen.3"


def test_the_last_error_explains_dead_letters_that_are_not_browsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryAdministration, "browse_note", "browsing marks messages as redelivered")
    name = uuid.uuid4().hex
    settings = ConnectionSettings(scheme="vm", hosts=((name, None),))
    letter = Outgoing(destination=Destination.queue("orders.dlq"), message=JmsMessage.text("x"))
    with (
        contextlib.closing(connect(settings)) as connection,
        contextlib.closing(open_store(f"sqlite:///{tmp_path / 'store.db'}")) as store,
    ):
        connection.send([letter])

        def cause(*reports: RunReport) -> str:
            store.activations.report(reports)
            runs = [each for found in list_activations(store, ended=True) for each in found.runs]
            [found] = [
                each
                for each in examine_broker("jms_a", lambda: settings, runs=runs)
                if "dead-letter queue orders.dlq" in each.symptom
            ]
            return found.cause.partition("; not browsed")[0]

        here: dict[str, Any] = {"broker": f"vm://{name}", "dead_lettered": 3, "last_error_at": NOON}
        elsewhere = here | {"broker": "vm://other", "last_error": "KeyError: elsewhere"}
        nothing_moved = here | {"dead_lettered": 0, "last_error": "KeyError: nothing moved"}
        assert cause(run(1, **elsewhere), run(2, **nothing_moved)) == "messages failed and were moved there"
        later = {"destination": "queue://prices", "last_error_at": NOON + timedelta(hours=1)}
        assert cause(run(3, **here | later, last_error="KeyError: later")) == (
            "activation orders.3 (task listen.3) moved 3 messages to a dead-letter destination; "
            "its last error: KeyError: later"
        )
        ended = here | {"status": RunStatus.ENDED, "dead_lettered": 1}
        assert cause(run(4, **ended, last_error="ValueError: order 7 is refused")) == (
            "activation orders.4 (task listen.4) moved 1 message to a dead-letter destination; "
            "its last error: ValueError: order 7 is refused"
        )


def test_a_lost_activation_that_was_started_again_is_no_finding_even_if_it_has_ended_since(
    tmp_path: Path,
) -> None:
    """A killed triggerer is replaced, and then the DAG is paused."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    for number, status in ((1, RunStatus.ENDED), (2, RunStatus.UP), (3, RunStatus.ENDED)):
        with contextlib.closing(open_store(url, where=f"host/{number}")) as store:
            store.activations.report([run(number, activation="orders", owner="asset orders", status=status)])
        with contextlib.closing(open_store(url)) as store:
            lost = [each.symptom for each in examine_store(store)]
        assert lost == (["activation orders is lost"] if number == 2 else [])


REFUSED = "stomp://broker:61613: the broker refuses the credentials: Access refused for user 'airflow'"
SETTINGS = ConnectionSettings(scheme="stomp", hosts=(("broker", 61613),), username="airflow", password="x")


def watched(asset: str, fault: str = "", *, paused: bool = False) -> WatchedDestination:
    return WatchedDestination(
        asset=asset,
        jms_conn_id="jms_a",
        destination=Destination.queue("orders"),
        dags=(("load", paused),),
        fault=fault,
        failing_since=NOON.isoformat() if fault else "",
        fault_since=(NOON + timedelta(minutes=1)).isoformat() if fault else "",
    )


def refusing(error: JmsError, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(_: ConnectionSettings) -> None:
        raise error

    monkeypatch.setattr(broker_examination, "connect", connect)


def test_a_rotated_password_is_one_finding_and_another_failure_on_the_broker_stays_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(AuthenticationError(REFUSED), monkeypatch)
    failing: dict[str, Any] = {"status": RunStatus.CONNECTING, "last_error_at": NOON}
    denied = "the broker refused: access to queue 'prices' refused for user 'airflow'"
    with contextlib.closing(open_store(f"sqlite:///{tmp_path / 'store.db'}")) as store:
        store.activations.report(
            [
                # It was refused in an earlier outage, too.
                run(1, **failing | {"last_error_at": NOON - timedelta(hours=1)}, last_error=REFUSED),
                run(2, **failing, last_error=REFUSED, broker="broker:61613"),
                run(3, **failing, last_error=denied),
                run(4, **failing, last_error=REFUSED, broker="stomp://elsewhere:61613"),
                run(5, **failing, last_error=REFUSED, kind=ActivationKind.TRIGGER),  # asset 'a' has it
            ]
        )
        assets = [watched("a", REFUSED), watched("b", "the destination has no messages that fit")]
        found = [
            *examine_store(store),
            *examine_watchers(assets),
            *examine_broker("jms_a", lambda: SETTINGS, assets),
        ]
    login, *others = by_kind(by_cause(found))
    assert login.symptom == "connection 'jms_a' cannot log in, at least since 2026-05-04T12:00:00+00:00"
    assert login.summary == (
        "activations that are not connected: 2, since 2026-05-04T12:00:00+00:00; assets without events: 1, "
        "since 2026-05-04T12:00:00+00:00"
    )
    assert [each.symptom.partition(" since")[0] for each in login.consequences] == [
        "activation orders.1 is not connected",
        "activation orders.2 is not connected",
        "asset 'a' gets no events",
    ]
    assert login.consequences[0].symptom.endswith(" since 2026-05-04T12:00:00+00:00")
    assert login.consequences[0].fix == "airflow jms activations show orders.1"
    assert sorted(each.cause for each in others) == sorted(
        [denied, REFUSED, "the destination has no messages that fit"]
    )


def test_a_dead_triggerer_is_one_finding_and_a_lost_listener_stays_its_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    kinds = {"host/7": ActivationKind.TRIGGER, "host/8": ActivationKind.LISTENER}
    for number, (where, kind) in enumerate(kinds.items()):
        with contextlib.closing(open_store(url, where=where)) as store:
            store.activations.report([run(number, kind=kind)])
    with contextlib.closing(open_store(url)) as store:
        store.activations.report([run(2, status=RunStatus.WAITING)])
        of_store = list(examine_store(store))

    def found(heartbeat: datetime, *, alive: bool) -> list[Finding]:
        triggerer = Triggerer(host="host-1", alive=alive, heartbeat=heartbeat)
        return by_kind(by_cause([*examine_triggerer(triggerer, is_needed=True, deferred=4), *of_store]))

    now = datetime.now(UTC)
    dead, listener = found(now, alive=False)
    assert dead.symptom.startswith("no triggerer is alive")
    assert dead.cause.endswith("; tasks deferred now: 4")
    assert [each.symptom.partition(",")[0] for each in dead.consequences] == [
        "1 listener deferred",
        "activation orders.0 is lost",
    ]
    assert dead.consequences[1].fix == "a triggerer starts event triggers again"
    assert listener.symptom == "activation orders.1 is lost"
    # A triggerer that died an hour after the event trigger had not started it again.
    later, *lost = found(now + timedelta(hours=1), alive=False)
    assert len(later.consequences) == 1
    assert [each.symptom for each in lost] == ["activation orders.0 is lost", "activation orders.1 is lost"]
    assert [each.symptom for each in found(now, alive=True)] == [each.symptom for each in lost]


def disk_with(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 1 << 20
    usage = shutil._ntuple_diskusage(total=1400 * mib, used=(1400 - free) * mib, free=free * mib)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


def test_a_full_disk_comes_first_names_what_to_do_and_has_the_errors_about_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    disk_with(0, monkeypatch)
    full = (
        f"{spool}/refs/7: can't be written: {os.strerror(errno.ENOSPC)} (the spool needs a POSIX file system)"
    )
    found = [
        *examine_watchers([watched("a", full), watched("b", full.replace("spool", "other"))]),
        *examine_disk("spool", spool, spool=spool),
    ]
    disk, other = by_kind(by_cause(found))
    assert disk.symptom == (
        f"the disk of the spool {spool} is full: messages can't be stored, at least since "
        "2026-05-04T12:01:00+00:00"
    )
    assert disk.cause == (
        "0 of 1,400 MiB are free, expected at least 1,024 MiB; pruning the spool would free 0 MiB"
    )
    assert disk.fix.startswith("make room on the disk; what fills it: du -xah ")
    assert [each.symptom for each in disk.consequences] == [
        f"asset 'a' gets no events since {NOON.isoformat()}"
    ]
    assert "asset 'b'" in other.symptom
    disk_with(100, monkeypatch)
    [nearly] = by_cause(examine_disk("spool", spool, spool=spool))
    assert nearly.symptom == f"the disk of the spool {spool} is nearly full"
    monkeypatch.setattr(spool_examination, "_prunable", lambda _: 1 << 30)
    [prunable] = by_cause(examine_disk("spool", spool, spool=spool))
    assert prunable.fix == "airflow jms spool prune"


def test_a_message_that_fails_again_and_again_is_shown_with_its_activation_and_the_next_command(
    tmp_path: Path,
) -> None:
    name = "orders at stomp://broker:61613"
    with contextlib.closing(open_store(f"sqlite:///{tmp_path / 'store.db'}")) as store:
        for _ in range(6):
            store.attempts.begin(name, ["ID:7"], NOON)
        store.attempts.failed(
            name, {"ID:7": Failure(class_names=("builtins.ValueError",), message="no article\nsecond line")}
        )
        [one] = examine_store(store)
        assert one.cause.endswith("ValueError: no article")
        mine = {"activation": name, "owner": "orders.load, run manual__1"}
        store.activations.report([run(1, **mine)])
        [one] = examine_store(store)
        store.activations.report([run(2, **mine | {"owner": "orders.load, run manual__2"})])
        [either] = examine_store(store)
    assert one.symptom == f"1 message failed 5 times or more, one of activation {name} 6 times"
    assert one.cause.endswith(
        "ValueError: no article; the last attempt was made by orders.load, run manual__1"
    )
    assert either.cause.endswith("ValueError: no article")
    assert one.fix == f"airflow jms attempts show '{name}' ID:7"


Broker = Callable[..., list[Finding]]


@pytest.fixture
def broker() -> Broker:
    """Return a function that examines a broker on which messages are."""

    def examined(
        letters: Sequence[JmsMessage] = (),
        runs: Sequence[ActivationRun] = (),
        assets: Sequence[WatchedDestination] = (),
        **changes: Any,
    ) -> list[Finding]:
        settings = ConnectionSettings(scheme="vm", hosts=((uuid.uuid4().hex, None),), **changes)
        target = Destination.queue("orders.dlq")
        with contextlib.closing(connect(settings)) as connection:
            connection.send([Outgoing(destination=target, message=each) for each in letters])
            here = [replace(each, report=replace(each.report, broker=settings.url)) for each in runs]
            return list(examine_broker("jms_a", lambda: settings, assets, runs=here))

    return examined


def test_a_poison_message_is_shown_by_its_reason_and_the_next_command_shows_it(broker: Broker) -> None:
    reasons = {"JMS_Sun_JMSJCA_ExceptionClass": "ValueError", "JMS_Sun_JMSJCA_ExceptionMessage": "no article"}
    [one] = broker([JmsMessage.text("{", reasons)])
    assert (one.part, one.symptom) == (
        Part.BROKERS,
        "connection 'jms_a': 1 message on the dead-letter queue orders.dlq",
    )
    assert one.cause.startswith("1 with: ValueError: no article, at 2")
    assert one.fix.startswith("airflow jms dlq show --conn-id jms_a orders.dlq ")
    assert one.fix.endswith("; then dlq edit corrects and sends it, dlq replay sends all back")
    other = reasons | {"JMS_Sun_JMSJCA_ExceptionMessage": "no price"}
    [two] = broker([JmsMessage.text("{", reasons), JmsMessage.text("{", other)])
    assert two.fix.startswith("airflow jms dlq show --conn-id jms_a orders.dlq ")
    assert two.fix.endswith("; all 2 reasons: airflow jms dlq list --conn-id jms_a orders.dlq")


def test_a_poison_message_names_the_task_and_its_run_and_who_moved_it(broker: Broker) -> None:
    def letter(article: int) -> JmsMessage:
        why = f"task load of DAG orders failed in run r{article}: KeyError: {article}, password=x{article}"
        return JmsMessage.text(
            "{",
            {
                "JMS_Sun_JMSJCA_OriginalDestinationName": "orders",
                "JMS_Sun_JMSJCA_OriginalDestinationType": "javax.jms.Queue",
                "JMS_Sun_JMSJCA_ExceptionClass": "JmsError",
                "JMS_Sun_JMSJCA_ExceptionMessage": f"{why}\nsecond line",
            },
        )

    def mover(number: int, **changes: Any) -> ActivationRun:
        report = run(number, dead_lettered=number, last_error_at=NOON + timedelta(hours=number), **changes)
        return ActivationRun(report=report, process="host/7", host="host", pid=7, seen_at=NOON)

    owner = "dag.listen, run manual__1"
    runs = [
        mover(1, owner="asset 'orders'"),
        mover(2, owner=owner),
        # They did not move this letter.
        mover(0, owner="nothing moved"),
        mover(9, owner="elsewhere", destination="queue://prices"),
    ]
    [one] = broker([letter(7)], runs)
    start, _, end = one.cause.partition(", at 2")
    assert start == (
        "1 with: JmsError: task load of DAG orders failed in run r7: KeyError: 7, password=***, from "
        "queue://orders"
    )
    assert end.endswith(f"; {owner} moved 2 messages from there to a dead-letter destination, as did 1 other")
    # Of several, the values are those of one.
    [many] = broker([letter(7), letter(8)])
    assert many.cause.startswith("2 like: JmsError: task load of DAG orders failed in run r7: KeyError: 7")


def test_dead_letters_seen_over_two_connections_to_a_broker_are_one_finding() -> None:
    settings = [ConnectionSettings(scheme="vm", hosts=((uuid.uuid4().hex, None),)) for _ in range(2)]
    letter = Outgoing(destination=Destination.queue("orders.dlq"), message=JmsMessage.text("x"))
    with contextlib.ExitStack() as opened:
        for each in settings:
            opened.enter_context(contextlib.closing(connect(each))).send([letter])
        conn_ids = {"a": settings[0], "b": settings[0], "elsewhere": settings[1]}
        found = [
            finding
            for conn_id, each in conn_ids.items()
            for finding in examine_broker(conn_id, functools.partial(replace, each))
        ]
    one, other = by_cause(found)
    assert one.symptom == "connection 'a': 1 message on the dead-letter queue orders.dlq"
    assert [each.conn_id for each in one.consequences] == ["b"]
    assert one.summary == "other connections to the same broker: 1"
    assert (other.conn_id, other.consequences) == ("elsewhere", ())


def test_a_paused_dag_is_a_symptom_of_the_dags_and_not_of_the_broker(broker: Broker) -> None:
    [note] = broker(assets=[watched("a", paused=True)])
    assert (note.part, note.kind) == (Part.DAGS, "note")
    assert note.symptom == "asset 'a' starts no runs of DAG 'load'; 0 messages waiting on queue://orders"


def lacks(*_: object) -> None:
    raise CapabilityError("RabbitMQ shows queues only through its management plugin; set management_url")


def test_a_broker_that_reports_nothing_is_one_note_with_what_the_registry_has(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("resources", "time", "queues", "statistics"):
        monkeypatch.setattr(MemoryAdministration, name, lacks)

    def seen(report: RunReport) -> ActivationRun:
        return ActivationRun(report=report, process="host/7", host="host", pid=7, seen_at=NOON)

    # Its last heartbeat, not the start of its last reported state, is the time of its values.
    old = run(2, status=RunStatus.LOST, since=NOON - timedelta(hours=1), delivered=7)
    assert (
        "listener lost since 2026-05-04T12:00:00+00:00 (values of then), 7 delivered"
        in broker(runs=[seen(old)])[0].symptom
    )
    quiet = seen(run(1, delivered=7, committed=6, last_message_at=NOON))
    [note] = broker(runs=[quiet], username="nina", password="x")
    assert (note.kind, note.part) == ("note", Part.BROKERS)
    assert note.symptom == (
        "connection 'jms_a': memory and disk of the broker, clock of the broker, dead letters not examined; "
        "the registry has queue://orders: listener up since 2026-05-04T12:00:00+00:00, 7 delivered, "
        "6 committed, 0 dead letters, last message at 2026-05-04T12:00:00+00:00"
    )
    assert "rabbitmq-plugins enable rabbitmq_management, and give user nina the tag monitoring" in note.fix
    assert '"management_url": "http://' in note.fix
    assert note.fix.endswith("; then: airflow jms check jms_a")

    # Messages that are known to wait are a problem; dead letters may have been taken since.
    failed = {"dead_lettered": 1, "last_error": "KeyError: 7", "last_error_at": NOON}
    _, waiting, letters = broker(runs=[seen(run(2, status=RunStatus.LOST, backlog=3, in_flight=2, **failed))])
    assert (waiting.kind, waiting.symptom) == (
        "problem",
        (
            "connection 'jms_a': 3 messages waiting and 2 messages returned by its dead process on "
            "queue://orders for activation orders.2, which is lost since 2026-05-04T12:00:00+00:00 (values "
            "of then)"
        ),
    )
    assert (letters.kind, letters.symptom) == (
        "unknown",
        (
            "connection 'jms_a': 1 message moved to dead-letter destinations; how many still wait there is "
            "not known"
        ),
    )
    assert letters.cause == "activation orders.2, last error: KeyError: 7"
    # Another run consumes by now.
    later = replace(quiet, seen_at=NOON + timedelta(hours=1))
    assert len(broker(runs=[later, seen(run(3, status=RunStatus.LOST, backlog=3))])) == 1
