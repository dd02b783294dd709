"""A spec is checked against the capabilities of a broker."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.delivering.settings import ListenerContext, listener_settings
from airflow_provider_jmsjca.errors import BlockedByBrokerError
from airflow_provider_jmsjca.operating import checking
from airflow_provider_jmsjca.operating.checking import check_connection, clock_difference
from airflow_provider_jmsjca.operating.doctor.broker import examine_broker
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.administration import BrokerResource
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings
from airflow_provider_jmsjca.transports.capabilities import Capabilities
from airflow_provider_jmsjca.transports.memory.administration import MemoryAdministration
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection


@pytest.fixture
def settings() -> ConnectionSettings:
    return ConnectionSettings(scheme="vm", hosts=((uuid.uuid4().hex, None),))


def results(settings: ConnectionSettings, **spec: Any) -> dict[str, tuple[bool, str]]:
    listener = listener_settings(ActivationSpec(**spec), ListenerContext())
    return {each.name: (each.passed, each.detail) for each in check_connection(settings, listener=listener)}


SPEC = {"destination": "queue://orders", "message_selector": "n > 1"}


def test_a_broker_that_has_everything(settings: ConnectionSettings) -> None:
    found = results(settings, **SPEC, redelivery_handling="3:move(queue:$.dlq)")
    assert list(found) == [
        "login",
        "capabilities",
        "administration",
        "memory and disk",
        "clock",
        "spec: message_selector",
        "spec: targets of moves and copies",
    ]
    assert all(passed for passed, _ in found.values())


def test_a_missing_capability_is_named_with_a_way_out(
    settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poor(given: ConnectionSettings) -> Connection:
        made = connect(given)
        without = replace(made.capabilities, selector=False, atomic_commit=False)
        assert isinstance(without, Capabilities)
        return cast(
            "Any",
            SimpleNamespace(
                broker=made.broker,
                capabilities=without,
                administration=made.administration,
                close=made.close,
            ),
        )

    monkeypatch.setattr(checking, "connect", poor)
    found = results(settings, **SPEC)
    passed, detail = found["spec: message_selector"]
    assert not passed
    assert "message_selector needs the capability 'selector', which memory" in detail
    assert detail.endswith("; leave it out, and choose messages in the function with subscribes")
    assert "they may be sent twice" in found["sends of the function"][1]


FULL = BrokerResource(
    name="memory of rabbit@a",
    blocking=True,
    figures="612 MiB used, limit 400 MiB",
    remedy="raise the limit",
    shown_by="rabbitmqctl status",
)
EARLY = datetime(2026, 5, 4, 12, tzinfo=UTC)


def test_a_blocked_broker_is_named_with_figures_remedy_and_its_own_command(
    settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryAdministration, "resources", lambda _: [FULL])
    found = {each.name: each for each in check_connection(settings)}
    blocked = found["memory and disk"]
    assert not blocked.passed
    assert blocked.detail == (
        "the broker blocks producers, out of memory of rabbit@a (612 MiB used, limit 400 MiB): raise the "
        "limit (for the figures: rabbitmqctl status)"
    )
    [finding] = [each for each in examine_broker("jms_a", lambda: settings) if "blocks" in each.symptom]
    assert finding.cause == ("the broker reports an alarm: memory of rabbit@a (612 MiB used, limit 400 MiB)")
    assert finding.fix == "at the broker: raise the limit; for the figures: rabbitmqctl status"


@pytest.mark.parametrize("is_known", [True, False])
def test_a_send_that_is_not_confirmed_says_what_was_tried_and_where_the_broker_shows_it(
    is_known: bool, settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blocked(*_: object) -> None:
        raise BlockedByBrokerError("no receipt for 15 s")

    monkeypatch.setattr(MemoryConnection, "send", blocked)
    if is_known:
        monkeypatch.setattr(MemoryAdministration, "resources", lambda _: [FULL])
    last = list(check_connection(settings, Destination.queue("orders")))[-1]
    assert not last.passed
    assert "login and subscription worked, but a message sent was not confirmed in 0.0 s" in last.detail
    assert "no receipt for 15 s" in last.detail
    assert ("612 MiB used, limit 400 MiB" in last.detail) is is_known
    assert ("the broker's own console shows" in last.detail) is not is_known


def test_a_clock_that_differs(settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryAdministration, "time", lambda _: EARLY)
    found = {each.name: each for each in check_connection(settings)}
    assert not found["clock"].passed
    assert found["clock"].detail.endswith(" s; compare timedatectl status on both hosts")
    [finding] = [each for each in examine_broker("jms_a", lambda: settings) if "clock" in each.symptom]
    assert finding.symptom.startswith("connection 'jms_a': the broker's clock differs by -")


@pytest.mark.parametrize(
    ("local", "there", "ahead"),
    [
        # A broker may cut up to a second from its time.
        ((100.0, 100.5), 100.0, 0),
        ((100.9, 101.0), 100.0, 0),
        ((100.0, 100.5), 110.5, 10),
        ((100.0, 100.5), 89.0, -10),
    ],
)
def test_the_difference_of_clocks_leaves_out_what_the_answer_took(
    local: tuple[float, float], there: float, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(local)
    monkeypatch.setattr(checking.time, "time", lambda: next(times))
    administration = SimpleNamespace(time=lambda: datetime.fromtimestamp(there, UTC))
    assert clock_difference(cast("Any", administration)) == ahead
