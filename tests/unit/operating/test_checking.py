"""A spec is checked against the capabilities of a broker."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.engine.delivering.settings import ListenerContext, listener_settings
from airflow_provider_jmsjca.operating import checking
from airflow_provider_jmsjca.operating.checking import check_connection
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings
from airflow_provider_jmsjca.transports.capabilities import Capabilities


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
