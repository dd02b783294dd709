"""Options of a destination where they act: sessions, listeners (J91)."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.configuration.administered import DestinationReference
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.delivering.settings import listener_settings
from airflow_provider_jmsjca.engine.session.connection import JmsConnection, SessionRules
from airflow_provider_jmsjca.engine.session.session import AcknowledgeMode
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings


def find(text: str) -> Destination:
    return DestinationReference.parse(text, default=DestinationKind.QUEUE).resolve({})


@pytest.fixture
def connection() -> Iterator[JmsConnection]:
    settings = ConnectionSettings(scheme="vm", hosts=((f"options-{uuid4().hex[:8]}", None),))
    with JmsConnection(connect(settings), rules=SessionRules(find=find)) as opened:
        yield opened


def test_a_session_takes_the_prefetch_of_the_destination_j91(connection: JmsConnection) -> None:
    with connection.session(acknowledge_mode=AcknowledgeMode.CLIENT, prefetch=50) as session:
        for number in range(3):
            session.send("orders", JmsMessage.text(str(number)))
        narrow = "jmsjca://?name=orders&prefetch=2"
        taken = [session.receive(narrow, timeout=5) for _ in range(2)]
        assert [message and message.body for message in taken] == ["0", "1"]
        with connection.session() as other:
            rest = other.receive("orders", timeout=5)
            assert rest is not None
            assert rest.body == "2"


def test_options_of_another_broker_are_refused_by_a_session_j91(connection: JmsConnection) -> None:
    with connection.session() as session:
        strange = "jmsjca://?name=orders&x-queue-type=quorum"
        with pytest.raises(
            ConfigurationError, match="x-queue-type is not an option of a destination on vm://"
        ):
            session.send(strange, JmsMessage.text("x"))
        with pytest.raises(
            ConfigurationError, match="x-queue-type is not an option of a destination on vm://"
        ):
            session.receive(strange, timeout=0)


def test_a_listener_takes_the_prefetch_of_the_destination_j91() -> None:
    """W29."""
    spec = ActivationSpec(destination="jmsjca://?name=queue://orders&prefetch=7", prefetch=40)
    subscription = listener_settings(spec).subscription
    assert subscription.prefetch == 7
    assert subscription.destination == Destination.queue("orders")


def test_a_listeners_prefetch_still_holds_what_is_in_hand_at_once_j91() -> None:
    spec = ActivationSpec(
        destination="jmsjca://?name=queue://orders&prefetch=1",
        concurrency_mode="cc",
        endpoint_pool_max_size=4,
        batch_size=5,
        endpoint_pool_steady_size=1,
    )
    assert listener_settings(spec).subscription.prefetch == 20
