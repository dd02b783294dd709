"""What the options of a connection do in `JmsHook.get_conn()`: J38-J45, J75-J80, J92-J102."""

from __future__ import annotations

import contextlib
import json
import threading

import pytest

from airflow_provider_jmsjca import (
    AcknowledgeMode,
    AuthenticationError,
    CapabilityError,
    ConfigurationError,
    Destination,
    JmsHook,
    JmsMessage,
    JmsSensor,
    MemoryBroker,
    PermanentBrokerError,
    TransientBrokerError,
    connect,
    memory_broker,
)
from tests.airflow.conftest import Publish
from tests.internals.engine import ConnectionPool
from tests.internals.hooks import effective_selector
from tests.internals.transports import limbo_name

ORDERS = Destination.queue("orders")


def hook(monkeypatch: pytest.MonkeyPatch, server: MemoryBroker, **fields: object) -> JmsHook:
    document = {"conn_type": "jms", "host": f"vm://{server.name}", **fields}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_OPTIONS", json.dumps(document))
    return JmsHook("jms_options")


@pytest.mark.parametrize(
    ("extra", "transacted"),
    [
        ({}, False),
        ({"options": "JMSJCA.ACC=true"}, False),
        ({"options": "JMSJCA.ACC=false"}, True),
        ({"options": "JMSJCA.ACC=false\nJMSJCA.IgnoreTx=false"}, False),
        ({"options": "JMSJCA.IgnoreTx=true"}, True),
        ({"options": "JMSJCA.IgnoreTx=true\nJMSJCA.BypassRA=true"}, False),
    ],
)
def test_which_sessions_are_transacted_unasked_j97_j98_j126(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch, extra: dict[str, object], transacted: bool
) -> None:
    with (
        hook(monkeypatch, server, extra=extra).get_conn() as connection,
        connection.session(acknowledge_mode=AcknowledgeMode.CLIENT) as session,
    ):
        assert session.transacted is transacted
        session.send(ORDERS, JmsMessage.text("one"))
    with JmsHook("jms_test").get_conn() as other, other.session() as reader:
        assert (reader.receive(ORDERS, timeout=0) is None) is transacted  # never committed


def test_strict_allows_one_session_at_a_time_j27_j100(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hook(monkeypatch, server, extra={"strict": True}).get_conn() as connection:
        with connection.session(), pytest.raises(ConfigurationError, match=r"JMSJCA\.Strict allows one"):
            connection.session()
        connection.session().close()


def test_no_xa_changes_nothing_because_every_unit_is_a_local_transaction_j92_j125(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("true", "false"):
        found = hook(monkeypatch, server, host=f"vm://{server.name}?JMSJCA.NoXA={value}")
        with found.get_conn() as connection, connection.session(transacted=True) as session:
            session.send(ORDERS, JmsMessage.text(value))
            session.commit()
            received = session.receive(ORDERS, timeout=0)
            assert received is not None
            assert received.body == value
            session.commit()


def test_as_many_sessions_as_the_pool_allows_j45(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hook(monkeypatch, server, extra={"options": "JMSJCA.poolmaxsize=2\nJMSJCA.pooltimeout=50"})
    with found.get_conn() as first, found.get_conn() as second:
        held = first.session()
        with (
            second.session(),
            pytest.raises(TransientBrokerError, match=r"no free session within 0\.05 s .*all 2 "),
        ):
            first.session()
        with second.session():
            held.close()
            first.session()
    with found.get_conn() as third, third.session(), third.session():
        pass


def test_a_session_that_must_wait_gets_the_place_of_the_next_one_closed_j45(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hook(monkeypatch, server, extra={"pool_max_size": 1}).get_conn() as connection:
        held = connection.session()
        waiting = threading.Thread(target=connection.session)
        with caplog.at_level("WARNING", logger="airflow_provider_jmsjca"):
            waiting.start()
            while not caplog.records:
                waiting.join(0.01)
        assert "pool_max_size" in caplog.text
        held.close()
        waiting.join(5)
        assert not waiting.is_alive()


def test_the_cache_keeps_a_bounded_number_of_connections_j80(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__CONNECTION_CACHE_SIZE", "2")
    found = hook(monkeypatch, server)
    for number in range(5):
        found.get_conn(f"user{number}").close()
    assert server.connections == 2
    with found.get_conn("a"), found.get_conn("b"), found.get_conn("c"):
        assert server.connections == 3
    found.get_conn("d").close()
    assert server.connections <= 2


def test_a_connection_lost_in_the_cache_is_replaced_j14_j43(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hook(monkeypatch, server)
    found.get_conn().close()
    server.restart()
    with found.get_conn() as connection, connection.session() as session:
        session.send(ORDERS, JmsMessage.text("after the restart"))


def test_pooling_producers_changes_nothing_j42(server: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    found = hook(monkeypatch, server, extra={"producer_pooling": True})
    with found.get_conn() as connection, connection.session() as session:
        session.send(ORDERS, JmsMessage.text("one"))
        assert session.receive(ORDERS, timeout=0) is not None


def test_the_client_id_reaches_the_broker_j41(server: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    prices = Destination.topic("prices")
    with (
        hook(monkeypatch, server, extra={"client_id": "airflow"}).get_conn() as connection,
        connection.session() as session,
    ):
        assert session.receive(prices, timeout=0, subscription_name="mine") is None
        session.send(prices, JmsMessage.text("kept"))
        assert session.receive(prices, timeout=20, subscription_name="mine") is not None
    without = hook(monkeypatch, server)
    with (
        without.get_conn() as connection,
        connection.session() as session,
        pytest.raises((ConfigurationError, CapabilityError), match="client id"),
    ):
        session.receive(prices, timeout=0, subscription_name="mine")


def test_the_prefetch_of_the_connection_bounds_what_a_session_holds(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch, publish: Publish
) -> None:
    publish("a", "b")
    with (
        hook(monkeypatch, server, extra={"prefetch": 1}).get_conn() as connection,
        connection.session(acknowledge_mode=AcknowledgeMode.CLIENT) as session,
    ):
        assert session.receive(ORDERS, timeout=20) is not None
        with pytest.raises(ConfigurationError, match="prefetch"):
            session.receive(ORDERS, timeout=0)


class TestCredentialsOfTheCall:
    """J75, J76, J78-J80: call beats connection; a user name that is a URL is an address."""

    @pytest.fixture
    def locked(self, server: MemoryBroker) -> MemoryBroker:
        server.require_login("app", "right")
        return server

    def test_beat_those_of_the_connection_j76(
        self, locked: MemoryBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = hook(monkeypatch, locked, login="other", password="wrong")
        with pytest.raises(AuthenticationError):
            found.get_conn()
        with found.get_conn("app", "right") as connection:
            assert connection.broker.product == "memory"

    @pytest.mark.parametrize(
        ("username", "password"),
        [
            ("vm://{}?username=app&password=right", None),
            ("vm://{}?username=app", "right"),
            ("vm://app:right@{}", None),
        ],
    )
    def test_a_url_for_a_user_name_j78_j79(
        self, locked: MemoryBroker, monkeypatch: pytest.MonkeyPatch, username: str, password: str | None
    ) -> None:
        """J18."""
        elsewhere = memory_broker(f"{locked.name}-elsewhere")
        found = hook(monkeypatch, elsewhere)
        with found.get_conn(username.format(locked.name), password):
            assert (locked.connections, elsewhere.connections) == (1, 0)

    def test_a_url_without_user_takes_those_of_the_connection_j79(
        self, locked: MemoryBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        elsewhere = memory_broker(f"{locked.name}-elsewhere")
        found = hook(monkeypatch, elsewhere, login="app", password="right")
        with found.get_conn(f"vm://{locked.name}"):
            assert locked.connections == 1

    def test_share_the_cache_with_all_others_j80(
        self, locked: MemoryBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = hook(monkeypatch, locked, login="app", password="right")
        with found.get_conn(), found.get_conn(f"vm://{locked.name}?username=app&password=right"):
            assert locked.connections == 1


class TestAdministeredObjects:
    """J85, J87-J90: a destination defined under a name."""

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("AIRFLOW__JMSJCA__DESTINATION.PLACED", "queue://orders"),
            ("AIRFLOW_VAR_PLACED", "queue://orders"),
            ("AIRFLOW_VAR_PLACED", '{"type": "javax.jms.Queue", "name": "orders"}'),
        ],
    )
    def test_a_session_looks_them_up_j88(
        self, publish: Publish, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
    ) -> None:
        monkeypatch.setenv(variable, value)
        publish("one")
        with JmsHook("jms_test").get_conn() as connection, connection.session() as session:
            found = session.receive("lookup://placed", timeout=20)
        assert found is not None
        assert found.body == "one"

    @pytest.mark.usefixtures("server")
    def test_one_that_is_not_there_is_named(self) -> None:
        with (
            JmsHook("jms_test").get_conn() as connection,
            connection.session() as session,
            pytest.raises(ConfigurationError, match="lookup://placed: there is no such administered object"),
        ):
            session.send("lookup://placed", JmsMessage.text("one"))

    def test_options_in_a_name_j91(self, publish: Publish) -> None:
        publish("one")
        with JmsHook("jms_test").get_conn() as connection, connection.session() as session:
            assert session.receive("jmsjca://?name=orders&prefetch=3", timeout=20) is not None
            with pytest.raises(ConfigurationError, match="some is not an option of a destination on vm://"):
                session.receive("jmsjca://?name=orders&some=option", timeout=1)


def test_a_selector_of_the_connection_reaches_its_consumers_j178_j182(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hook(monkeypatch, server, extra={"options": "JMSJCA.selector=region = 'eu' ${andselector}"})
    assert effective_selector(found.options(), ORDERS, "amount > 5") == "region = 'eu' and (amount > 5)"
    with found.get_conn() as connection, connection.session() as session:
        session.send(ORDERS, JmsMessage.text("here", properties={"region": "us"}))
    sensor = JmsSensor(task_id="wait", destination="orders", jms_conn_id="jms_options")
    assert not sensor.poke({})
    with found.get_conn() as connection, connection.session() as session:
        session.send(ORDERS, JmsMessage.text("here", properties={"region": "eu"}))
    assert sensor.poke({})


def test_a_connection_not_used_successfully_for_the_idle_timeout_is_replaced_j43(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setitem(ConnectionPool.__init__.__kwdefaults__ or {}, "clock", lambda: now)
    found = hook(monkeypatch, server, extra={"idle_timeout": 40.5})  # nobody else has a pool of that kind
    with found.get_conn() as held, held.session() as session:
        for _ in range(3):
            now += 20
            session.send(ORDERS, JmsMessage.text("success"))
            with found.get_conn():
                assert server.connections == 1
        now += 41
        with found.get_conn():
            assert server.connections == 2


def test_a_connection_on_which_the_broker_refused_something_is_replaced_j14(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hook(monkeypatch, server)
    server.forbid(ORDERS)
    with found.get_conn() as held, held.session() as session:
        with found.get_conn():
            assert server.connections == 1
        with pytest.raises(PermanentBrokerError):
            session.send(ORDERS, JmsMessage.text("refused"))
        with found.get_conn():
            assert server.connections == 2
    assert server.connections == 1


def test_a_user_name_may_look_another_connection_up_j69_j78(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = memory_broker(f"{server.name}-elsewhere")
    monkeypatch.setenv(
        "AIRFLOW_CONN_JMS_ELSEWHERE", json.dumps({"conn_type": "jms", "host": f"vm://{elsewhere.name}"})
    )
    found = hook(monkeypatch, server)
    with found.get_conn("lookup://jms_elsewhere"):
        assert (server.connections, elsewhere.connections) == (0, 1)


def test_what_is_sent_from_limbo_needs_no_client_id_which_a_consumer_has(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker has one client of an id at a time: limbo would wait for as long as a listener runs."""
    consumer = hook(monkeypatch, server, extra={"client_id": "airflow"})
    with contextlib.closing(connect(consumer.settings())):
        for name in (consumer.jms_conn_id, limbo_name(consumer.jms_conn_id, server.name)):
            with JmsHook.connect_for_limbo(name) as connection, connection.session() as session:
                session.send("queue://orders", JmsMessage.text("x"))
        with pytest.raises(ConfigurationError, match="no host elsewhere, expected it beside"):
            JmsHook.connect_for_limbo(limbo_name(consumer.jms_conn_id, "elsewhere"))
    assert server.depth("orders") == 2
