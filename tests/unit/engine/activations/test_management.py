"""Activations under the names of JMSJCA's MBean: J114-J121, W27."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from airflow_provider_jmsjca.core.options import read_properties
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.activations.management import OPERATIONS, UNAVAILABLE
from airflow_provider_jmsjca.errors import ConfigurationError
from tests.unit.engine.listening import Site, until


def nothing(_delivery: Any) -> None:
    """Handle by doing nothing."""


def status(activation: Listener) -> object:
    return activation.operate("getStatus")


def test_status_goes_from_down_over_connecting_to_up_and_down_again_j119(site: Site) -> None:
    go_on = threading.Event()
    from airflow_provider_jmsjca.transports import connect  # noqa: PLC0415  # what is held up

    def slow() -> Any:
        go_on.wait(5)
        return connect(site.settings)

    activation = site.activation(nothing, connect_with=slow)
    assert status(activation) == "Down"
    assert activation.operate("isStartable") is True
    activation.operate("start")
    assert status(activation) == "Connecting"
    assert activation.operate("isStartable") is False
    assert activation.operate("isStoppable") is True
    go_on.set()
    until(lambda: status(activation) == "Up")
    assert activation.operate("stop") is True
    assert status(activation) == "Down"
    assert activation.operate("isRestartable") is False


def test_disconnecting_waits_for_handlers_j119(site: Site) -> None:
    inside, leave = threading.Event(), threading.Event()

    def slow(_delivery: Any) -> None:
        inside.set()
        leave.wait(5)

    activation = site.activation(slow)
    activation.start()
    site.send("one")
    assert inside.wait(5)
    activation.request_stop()
    assert status(activation) == "Disconnecting"
    leave.set()
    until(lambda: status(activation) == "Down")


def test_attributes_show_what_happens_now_j117(site: Site) -> None:
    """J9, J56, J116."""
    inside, leave = threading.Event(), threading.Event()

    def slow(_delivery: Any) -> None:
        inside.set()
        leave.wait(5)

    activation = site.activation(
        slow,
        concurrency_mode="cc",
        endpoint_pool_max_size=3,
        endpoint_pool_steady_size=1,
        name="orders in",
        password="hunter2",
    )
    activation.start()
    assert activation.consuming.wait(5)
    site.send("one")
    assert inside.wait(5)
    shown = activation.attributes()
    assert (shown["MBeanName"], shown["Status"], shown["DeliveryMode"]) == ("orders in", "Up", "cc")
    assert shown["NActiveEndpoints"] == 1
    assert shown["NConfiguredEndpoints"] == 3
    assert shown["NHighestActiveEndpoints"] == 1
    assert shown["NMessages"] == 1
    assert isinstance(shown["NTotalEndpoints"], int)
    assert 1 <= shown["NTotalEndpoints"] <= 3
    assert shown["Suspended"] is False
    assert "endpoint_pool_max_size=3" in str(shown["ActivationSpec"])
    assert "hunter2" not in str(shown)
    leave.set()
    until(lambda: activation.attributes()["NActiveEndpoints"] == 0)
    until(lambda: activation.counts.committed == 1)
    stats = activation.attributes()["Stats"]
    assert isinstance(stats, dict)
    assert (stats["DA"], stats["DC"], stats["A-EP"], stats["H-EP"]) == (1, 1, 0, 1)
    assert stats["D(s0)"] == 1


def test_properties_are_a_text_under_the_documented_keys_j118_j120(site: Site) -> None:
    activation = site.activation(nothing, concurrency_mode="sync", message_selector="region = 'eu'")
    activation.start()
    until(lambda: status(activation) == "Up")
    text = activation.operate("getProperties")
    assert isinstance(text, str)
    assert read_properties(text) == {
        "destination.type": "queue",
        "destination.name": "orders",
        "subscriber.name": "",
        "subscriber.durability": "NonDurable",
        "concurrency": "sync",
        "selector": "region = 'eu'",
        "url": "",
        "server": site.broker.name,
        "port": "",
    }


def test_suspend_resume_and_restart_by_hand_j116_j120_w27(site: Site) -> None:
    activation = site.activation(nothing)
    activation.operate("startService")
    until(lambda: status(activation) == "Up")
    activation.operate("suspend")
    assert activation.attributes()["Suspended"] is True
    site.send("one")
    assert activation.attributes()["NMessages"] == 0
    activation.operate("resume")
    until(lambda: activation.attributes()["NMessages"] == 1)
    assert activation.operate("isRestartable") is True
    activation.operate("restart")
    until(lambda: status(activation) == "Up")
    site.send("two")
    until(lambda: site.got == ["one", "two"])
    assert activation.operate("stopService") is True
    assert activation.attributes()["Suspended"] is True
    assert activation.operate("isStartable") is True


def test_statistics_begin_anew_when_told_to_and_counts_go_on_j120(site: Site) -> None:
    activation = site.activation(nothing)
    activation.start()
    site.send("one", "two")
    until(lambda: activation.counts.committed == 2)
    activation.operate("resetStats")
    stats = activation.statistics()
    assert stats.as_map() == {
        "DC": 0,
        "BC": 0,
        "BCSLDC": 0,
        "DCSLBC": 0,
        "DA": 0,
        "R": 0,
        "RM": 0,
        "A-EP": 0,
        "H-EP": 0,
        "EP": stats.threads,
    }
    site.send("three")
    until(lambda: activation.counts.committed == 3)
    again = activation.statistics()
    assert again.counts.committed == 1
    assert again.as_map()["D(s0)"] == 1


def test_the_server_is_named_once_it_is_known_j115(site: Site) -> None:
    """J118."""
    activation = site.activation(nothing)
    assert activation.operate("getJMSServerType") == ""
    activation.start()
    until(lambda: activation.operate("getJMSServerType") == "memory")


def test_what_has_no_meaning_says_why_j114_j120(site: Site) -> None:
    activation = site.activation(nothing)
    for name, why in UNAVAILABLE.items():
        with pytest.raises(ConfigurationError) as caught:
            activation.operate(name)
        assert str(caught.value) == f"operation {name} is not available here: {why}"


def test_a_wrong_name_gets_the_nearest_and_all(site: Site) -> None:
    activation = site.activation(nothing)
    with pytest.raises(ConfigurationError, match=r"did you mean getStatus\?") as caught:
        activation.operate("getStatsu")
    assert all(name in str(caught.value) for name in OPERATIONS)
