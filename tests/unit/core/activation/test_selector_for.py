"""Selectors of an activation, parameters filled in: J57, J104, J178-J182."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.precedence import Layer, Level, resolve
from airflow_provider_jmsjca.errors import ConfigurationError

TOPIC = {"destination": "topic://t", "subscription_durability": "Durable", "subscriptionName": "sub47"}


def in_force(spec: ActivationSpec, *layers: Layer) -> ActivationSpec:
    return ActivationSpec.from_resolved(resolve([*layers, spec.layer()]))


def test_the_subscribers_name_is_filled_in_j180_j182() -> None:
    spec = ActivationSpec(**TOPIC, selector="(sub is null or sub = '${subscribername}')")
    assert spec.selector_for() == "(sub is null or sub = 'sub47')"


def test_inside_a_distributed_name_the_inner_one_counts_j180() -> None:
    name = "jmsjca://?distribution=1&subscribername=inner"
    spec = ActivationSpec(**TOPIC | {"subscriptionName": name}, selector="sub = '${subscribername}'")
    assert spec.selector_for() == "sub = 'inner'"


@pytest.mark.parametrize("level", [Level.CONNECTOR, Level.CONNECTION_FACTORY])
def test_a_selector_of_the_installation_or_connection_takes_in_that_of_the_activation_j178_j182(
    level: Level,
) -> None:
    template = "(sub is null or sub = '${subscribername}') ${andselector}"
    above = Layer(level=level, fields={"options": f"JMSJCA.selector={template}"})
    with_own = in_force(ActivationSpec(**TOPIC, selector="msgtype = 1"), above)
    assert with_own.selector_for() == "(sub is null or sub = 'sub47') and (msgtype = 1)"
    without = in_force(ActivationSpec(**TOPIC), above)
    assert without.selector_for() == "(sub is null or sub = 'sub47')"


def test_url_encoded_in_the_url_j182() -> None:
    url = "stomp://h?JMSJCA.selector=%24%7Bselectorand%7D+region+%3D+%27eu%27"
    above = Layer(level=Level.CONNECTION_FACTORY, fields={"connection_url": url})
    spec = in_force(ActivationSpec(**TOPIC, selector="a = 1"), above)
    assert spec.selector_for() == "(a = 1) and region = 'eu'"


def test_what_is_filled_in_stays_a_value_j181() -> None:
    spec = ActivationSpec(destination="queue://q", selector="region = '${region}'")
    assert spec.selector_for({"region": "o'x' or 'a' = 'a"}) == "region = 'o''x'' or ''a'' = ''a'"


def test_a_fault_in_what_comes_out_is_said() -> None:
    spec = ActivationSpec(destination="queue://q", selector="region = ${region}")
    with pytest.raises(ConfigurationError):
        spec.selector_for({"region": "'eu' or 1 = 1"})
