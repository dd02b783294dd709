"""A password, given in every way there is, is in nothing that anybody sees: every log record at debug level,
reprs, errors, `airflow jms explain`, serialized triggers, what tasks return."""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from airflow_provider_jmsjca import (
    ActivationSpec,
    AuthenticationError,
    JmsActivationTrigger,
    JmsError,
    JmsHook,
    JmsMessage,
    JmsPublishOperator,
    connect,
)
from tests.internals.cli import explain_command
from tests.internals.engine import Listener, ListenerContext, listener_settings, one_connection
from tests.internals.triggers import JmsListenTrigger
from tests.servers.stomp_peer import ScriptedBroker, scripted_broker

MARK = "Tr0ub4dor-and-3"
WRONG = "Wr0ng-Tr0ub4dor-and-3"
CONN = "jms_secret"


@pytest.fixture
def peer() -> Iterator[ScriptedBroker]:
    with scripted_broker(passcode=MARK, new_messages=True) as made:
        yield made


NOBODY = (None, None)


class Given(NamedTuple):
    """Where the password stands."""

    connection: dict[str, Any]
    environment: Mapping[str, str] = MappingProxyType({})
    spec: Mapping[str, Any] = MappingProxyType({})
    call: tuple[str | None, str | None] = NOBODY


def at(port: int, query: str = "", user: str = "") -> str:
    return f"stomp://{user}127.0.0.1:{port}{query}"


def by_field(port: int, word: str, **extra: str) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": port, "login": "app", "password": word, "extra": extra}


def by_lookup(port: int, word: str) -> Given:
    other = {"conn_type": "jms"} | by_field(port, word)
    return Given({"host": "lookup://jms_other"}, {"AIRFLOW_CONN_JMS_OTHER": json.dumps(other)})


def by_spec_url(port: int, word: str) -> Given:
    url = at(port, f"?username=app&password={word}")
    return Given({"host": at(1)}, spec={"ConnectionURL": url}, call=(url, None))


WAYS: dict[str, Callable[[int, str], Given]] = {
    "field": lambda port, word: Given(by_field(port, word)),
    "URL": lambda port, word: Given({"host": at(port, user=f"app:{word}@")}),
    "query": lambda port, word: Given({"host": at(port, f"?username=app&password={word}&a.secret={word}")}),
    "extra": lambda port, word: Given({"host": at(port), "extra": {"username": "app", "password": word}}),
    "options": lambda port, word: Given(by_field(port, word, options=f"api.token={word}\nmy.pwd={word}")),
    "connector": lambda port, word: Given(
        {"host": at(port)}, {"AIRFLOW__JMSJCA__USERNAME": "app", "AIRFLOW__JMSJCA__PASSWORD": word}
    ),
    "environment": lambda port, word: Given(
        {"host": at(port)}, {"JMSJCA_USERNAME": "app", "JMSJCA_PASSWORD": word}
    ),
    "lookup": by_lookup,
    "spec": lambda port, word: Given(
        {"host": at(port)}, spec={"UserName": "app", "Password": word}, call=("app", word)
    ),
    "URL of the spec": by_spec_url,
    "URL as user": lambda port, word: Given(
        {"host": at(1)},
        spec={"ConnectionURL": at(port, user="app@"), "Password": word},
        call=(at(port, "?username=app"), word),
    ),
}


class Seen:
    """Every text somebody may see."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def show(self, *values: object) -> None:
        self.texts.extend(f"{value!r} {value}" for value in values)

    def fail(self, error: BaseException) -> None:
        self.show(error, getattr(error, "faults", ()))
        self.texts.append("".join(traceback.format_exception(error, chain=True)))


def use(monkeypatch: pytest.MonkeyPatch, given: Given) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps({"conn_type": "jms"} | given.connection))
    for name, value in given.environment.items():
        monkeypatch.setenv(name, value)


def explained(seen: Seen, spec: ActivationSpec, request: pytest.FixtureRequest) -> None:
    capsys = request.getfixturevalue("capsys")
    path = request.getfixturevalue("tmp_path") / "spec.yaml"
    path.write_text(spec.to_yaml(secrets=True))
    for output in ("table", "json"):
        try:
            explain_command(
                Namespace(conn_id=CONN, activation=str(path), name=None, only_set=False, output=output)
            )
        except SystemExit as error:
            seen.show(error)
        seen.show(*capsys.readouterr())


def listen(seen: Seen, peer: ScriptedBroker, spec: ActivationSpec) -> None:
    """Consume, lose the connection, consume again."""
    resolved, settings = JmsHook(CONN).activation(spec)
    listener = listener_settings(resolved, ListenerContext(principal=settings.username, url=settings.url))
    seen.show(resolved, settings, listener)
    got = threading.Semaphore(0)

    def handle(delivery: Any) -> None:
        seen.show(delivery, delivery.context)
        got.release()

    activation = Listener(one_connection(listener, functools.partial(connect, settings)), handle)
    activation.start()
    try:
        assert got.acquire(timeout=10)
        peer.drop()
        assert got.acquire(timeout=10)
        seen.show(activation.attributes(), activation.operate("getProperties"), activation.counts)
    finally:
        activation.stop()


@pytest.mark.parametrize("way", WAYS)
def test_a_password_that_is_right_is_shown_nowhere(
    way: str,
    peer: ScriptedBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    given = WAYS[way](peer.port, MARK)
    use(monkeypatch, given)
    caplog.set_level(logging.DEBUG)
    seen = Seen()
    hook = JmsHook(CONN)
    seen.show(hook, hook.options(), hook.settings(), hook.test_connection())
    with hook.get_conn(*given.call) as connection, connection.session() as session:
        session.send("queue://orders", JmsMessage.text("hello"))
        assert session.receive("queue://orders", timeout=5) is not None
        seen.show(connection, session)
    spec = ActivationSpec(destination="queue://orders", polling_interval=0.1, name="in", **given.spec)
    seen.show(spec, spec.to_yaml(), spec.without_effect)
    listen(seen, peer, spec)
    explained(seen, spec, request)
    seen.show(JmsActivationTrigger(CONN, "queue://orders").serialize())
    seen.show(JmsListenTrigger(jms_conn_id=CONN, destination="queue://orders").serialize())
    if given.call == NOBODY:
        publish = JmsPublishOperator(
            task_id="p", destination="queue://orders", messages="hello", jms_conn_id=CONN
        )
        instance = SimpleNamespace(dag_id="d", run_id="r", task_id="p", map_index=-1)
        seen.show(publish.execute({"ti": instance}))  # type: ignore[typeddict-item]  # all it asks for
    records = [record for record in caplog.records if record.name.startswith("airflow_provider_jmsjca")]
    assert any(record.levelno == logging.DEBUG for record in records), "the test would see nothing"
    logged = [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    assert not [text for text in (*logged, *seen.texts) if MARK in text]


@pytest.mark.parametrize("way", WAYS)
def test_a_password_that_is_wrong_is_shown_nowhere(
    way: str, peer: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The peer repeats the password in its ERROR."""
    given = WAYS[way](peer.port, WRONG)
    use(monkeypatch, given)
    caplog.set_level(logging.DEBUG)
    seen = Seen()
    hook = JmsHook(CONN)
    with pytest.raises(AuthenticationError) as caught:
        hook.get_conn(*given.call)
    seen.fail(caught.value)
    seen.show(hook.test_connection())
    spec = ActivationSpec(
        destination="queue://orders", polling_interval=0.05, retry_permanent_errors=True, **given.spec
    )
    resolved, settings = hook.activation(spec)
    activation = Listener(
        one_connection(listener_settings(resolved), functools.partial(connect, settings)), print
    )
    activation.start()
    deadline = time.monotonic() + 10
    while sum("connecting again" in record.getMessage() for record in caplog.records) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    activation.stop()
    with pytest.raises(JmsError) as refused:
        Listener(
            one_connection(
                listener_settings(resolved.replace(retry_permanent_errors=False)),
                functools.partial(connect, settings),
            ),
            print,
        ).run(max_messages=1)
    seen.fail(refused.value)
    logged = [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    assert not [text for text in (*logged, *seen.texts) if WRONG in text]
