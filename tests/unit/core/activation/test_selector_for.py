"""Selectors of an activation, parameters filled in: J57, J104, J178-J182."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.configuration.explain import explain
from airflow_provider_jmsjca.core.configuration.precedence import Layer, Level, connector_layer, resolve
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
    given = {"parameter.region": "o'x' or 'a' = 'a"}
    spec = ActivationSpec(destination="queue://q", selector="region = '${region}'", **given)
    assert spec.selector_for() == "region = 'o''x'' or ''a'' = ''a'"


def test_a_fault_in_what_comes_out_is_said() -> None:
    given = {"parameter.region": "'eu' or 1 = 1"}
    spec = ActivationSpec(destination="queue://q", selector="region = ${region}", **given)
    with pytest.raises(ConfigurationError):
        spec.selector_for()


class TestConfiguredParameters:
    """J179, J181: values of `${name}` that the levels configure."""

    def test_of_every_level_the_higher_one_counts_j181(self) -> None:
        spec = ActivationSpec(
            destination="queue://q", selector="a = ${A} and b = ${b} and c = ${c} and d = ${d}"
        )
        layers = [
            Layer(
                level=Level.CONNECTOR,
                fields={"parameter.a": "1", "parameter.b": "1", "parameter.c": "1"},
                environment={"JMSJCA_PARAMETER_B": "2"},
            ),
            Layer(level=Level.CONNECTION_FACTORY, fields={"connection_url": "vm://h?JMSJCA.parameter.C=3"}),
        ]
        with pytest.raises(ConfigurationError, match=r"position 35: found .*no value"):
            in_force(spec, *layers).selector_for()
        given = Layer(level=Level.CONNECTION_FACTORY, fields={"parameter.d": "4"})
        assert in_force(spec, *layers, given).selector_for() == "a = 1 and b = 2 and c = 3 and d = 4"

    def test_the_specs_own_come_first_j181(self) -> None:
        below = Layer(level=Level.CONNECTION_FACTORY, fields={"parameter.limit": 5, "parameter.on": True})
        selector = "amount > ${limit} and open = ${on}"
        assert in_force(ActivationSpec(destination="queue://q", selector=selector), below).selector_for() == (
            "amount > 5 and open = TRUE"
        )
        own = ActivationSpec(destination="queue://q", selector=selector, options="JMSJCA.parameter.limit=7")
        assert in_force(own, below).selector_for() == "amount > 7 and open = TRUE"

    def test_are_filled_in_to_an_override_and_what_it_takes_in_j178_j181(self) -> None:
        above = Layer(
            level=Level.CONNECTION_FACTORY,
            fields={"options": {"JMSJCA.selector": "r = '${r}' ${andselector}", "JMSJCA.parameter.r": "e'u"}},
        )
        spec = in_force(ActivationSpec(destination="queue://q", selector="x = '${r}'"), above)
        assert spec.selector_for() == "r = 'e''u' and (x = 'e''u')"

    def test_stay_with_a_spec_that_is_changed_or_written(self) -> None:
        spec = ActivationSpec(
            destination="queue://q", selector="r = '${r}' and p = '${password}'",
            **{"parameter.r": "eu", "parameter.password": "Tr0ub4dor"},
        )  # fmt: skip
        assert spec.replace(batch_size=1).selector_for() == "r = 'eu' and p = 'Tr0ub4dor'"
        assert "Tr0ub4dor" not in spec.to_yaml()
        assert "parameter.r: eu" in spec.to_yaml()
        assert ActivationSpec.from_yaml(spec.to_yaml(secrets=True)).selector_for() == spec.selector_for()

    @pytest.mark.parametrize(
        ("fields", "fault"),
        [
            ({"parameter.r": ["eu"]}, "connection factory: parameter.r: got list, expected text"),
            ({"parameter.": "eu"}, "the parameter has no name, expected one such as parameter.region"),
            (
                {"parameter.r": "1", "parameter.R": "2"},
                "parameter.R: differs from parameter.r only in upper and lower case",
            ),
        ],
    )
    def test_that_can_not_be_read_are_named_j181(self, fields: dict[str, object], fault: str) -> None:
        with pytest.raises(ConfigurationError, match=fault):
            resolve([Layer(level=Level.CONNECTION_FACTORY, fields=fields)])

    def test_only_variables_for_parameters_are_taken_from_the_environment_j181(self) -> None:
        """J181: a selector in a connection can't read what else is in the environment."""
        layer = connector_layer({"parameter.a": "1"}, {"A": "2", "SECRET": "x", "JMSJCA_PARAMETER_B": "3"})
        found = resolve([layer])
        assert {name: value for name, (value, _) in found.parameters.items()} == {"a": "1", "b": "3"}
        assert str(found.parameters["b"][1]) == "[jmsjca]: environment variable, JMSJCA_PARAMETER_B"

    def test_are_explained_with_secrets_masked(self) -> None:
        layer = connector_layer({"parameter.region": "eu", "parameter.token": "Tr0ub4dor"}, {})
        rows = explain(resolve([layer]), only_set=True)
        assert [(row.option, row.value, row.origin, row.status) for row in rows] == [
            ("parameter.region", "eu", "[jmsjca]: parameter.region", "for selectors"),
            ("parameter.token", "***", "[jmsjca]: parameter.token", "for selectors"),
        ]
