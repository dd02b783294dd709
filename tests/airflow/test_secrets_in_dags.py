"""A secret in a spec is refused before Airflow serializes the DAG or stores what a template became."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_jmsjca import (
    ActivationSpec,
    ConfigurationError,
    JmsCollectOperator,
    JmsListenOperator,
    JmsNotifier,
    JmsPublishOperator,
    JmsRequestOperator,
    JmsSensor,
    JmsToSparkSubmitOperator,
)
from tests.internals.hooks import find_destination

MARK = "Tr0ub4dor-and-3"
START = datetime(2026, 1, 1, tzinfo=UTC)

SECRETS = {
    "password": {"password": MARK},
    "JMSJCA's spelling": {"Password": MARK},
    "templated": {"password": "{{ '" + MARK + "' }}"},
    "URL": {"connection_url": f"stomp://app:{MARK}@broker"},
    "templated URL": {"connection_url": "stomp://app:{{ '" + MARK + "' }}@{{ var.value.host }}:6161x"},
    "query": {"ConnectionURL": f"stomp://broker?username=app&password={MARK}"},
    "key of the broker": {"provider-url": f"stomp://broker?api.token={MARK}"},
    "failover": {"connection_url": f"failover:(stomp://a:{MARK}@x,stomp://a:{MARK}@y)"},
    "URL as user": {"username": f"stomp://app:{MARK}@broker"},
    "options": {"options": f"ssl.trustStorePassword={MARK}"},
    "options, separated": {"Options": f"JMSJCA.sep=,a=b,api.secret={MARK}"},
    "options, mapping": {"options": {"a": 1, "my.pwd": MARK}},
    "options, broken": {"options": f"password={MARK}\nx=\\u12"},
    "key": {"JMSJCA.key_password": MARK},
    "destination": {"destination": f"jmsjca://?name=queue://orders&token={MARK}"},
    "one of several": {"destination": ["queue://a", f"jmsjca://?name=b&token={MARK}"]},
}

HARMLESS = {
    "user": {"username": "app"},
    "URL with a user": {"connection_url": "stomp://app@broker"},
    "lookup": {"connection_url": "lookup://jms_other"},
    "selector": {"message_selector": "token = 'x' AND password = 'y'"},
    "template": {"destination": "{{ var.value.token_queue }}"},
    "empty": {"password": "", "options": ""},
}


def handle(delivery: Any) -> None:
    del delivery


def decorated(spec: dict[str, Any]) -> None:
    ours = set(spec) <= set(ActivationSpec.model_fields)
    task.jms_listener(idle_for=1, **(spec if ours else {"spec": spec}))(handle)()


def decorated_with_spec(spec: dict[str, Any]) -> None:
    task.jms_listener(idle_for=1, spec=spec)(handle)()


def mapped(spec: dict[str, Any]) -> None:
    JmsListenOperator.partial(task_id="m", spec=spec, on_message=handle).expand(idle_for=[1, 2])


def mapped_over(spec: dict[str, Any]) -> None:
    JmsListenOperator.partial(task_id="o", on_message=handle, idle_for=1).expand(spec=[{}, spec])


def mapped_over_arguments(spec: dict[str, Any]) -> None:
    JmsListenOperator.partial(task_id="k", on_message=handle, idle_for=1).expand_kwargs([{"spec": spec}])


MAKE: list[Callable[[dict[str, Any]], Any]] = [
    lambda spec: JmsListenOperator(task_id="t", spec=spec, on_message=handle, idle_for=1),
    decorated,
    decorated_with_spec,
    mapped,
    mapped_over,
    mapped_over_arguments,
]

MADE_BY = ["task", "decorated", "decorated, spec", "partial", "over", "kwargs"]


@pytest.mark.parametrize("given", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize(
    "make", MAKE, ids=["task", "decorated", "decorated, spec", "partial", "over", "kwargs"]
)
def test_a_secret_does_not_get_into_the_serialized_dag(
    make: Callable[[dict[str, Any]], Any], given: dict[str, Any]
) -> None:
    spec = {"destination": "queue://orders"} | given
    (name,) = given
    with DAG("secret", schedule=None, start_date=START) as dag:
        with pytest.raises(ConfigurationError) as caught:
            make(spec)
        JmsListenOperator(task_id="fine", spec={"destination": "queue://orders"}, on_message=handle)
    assert name in str(caught.value)
    assert "Airflow connection" in str(caught.value)
    assert MARK not in str(caught.value)
    written = json.dumps(DagSerialization.to_dict(dag))
    assert "queue://orders" in written
    assert MARK not in written


def test_nor_does_that_of_a_spec_made_before() -> None:
    with pytest.raises(ConfigurationError, match="Password holds a secret"):
        MAKE[0](ActivationSpec(destination="queue://orders", Password=MARK))  # type: ignore[arg-type]


@pytest.mark.parametrize("given", HARMLESS.values(), ids=HARMLESS)
@pytest.mark.parametrize(
    "make", MAKE, ids=["task", "decorated", "decorated, spec", "partial", "over", "kwargs"]
)
def test_what_is_no_secret_is_taken(make: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> None:
    with DAG("harmless", schedule=None, start_date=START) as dag:
        make({"destination": "queue://orders"} | given)
    assert DagSerialization.to_dict(dag)["dag"]["tasks"]


def test_a_template_that_becomes_a_secret_is_refused_before_it_is_stored() -> None:
    operator = MAKE[0]({"destination": "queue://orders", "connection_url": "{{ params.url }}"})
    with pytest.raises(ConfigurationError, match="connection_url holds a secret") as caught:
        operator.render_template_fields({"params": {"url": f"stomp://app:{MARK}@broker"}})
    assert MARK not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda name: JmsPublishOperator(task_id="t", destination=name, messages="a"), "destination"),
        (
            lambda name: JmsPublishOperator(task_id="t", destination="a", messages="a", reply_to=name),
            "reply_to",
        ),
        (lambda name: JmsCollectOperator(task_id="t", destination=name), "destination"),
        (
            lambda name: JmsToSparkSubmitOperator(task_id="t", destination="a", dead_letter_destination=name),
            "dead_letter_destination",
        ),
        (lambda name: JmsSensor(task_id="t", destination=name), "destination"),
        (
            lambda name: JmsRequestOperator(task_id="t", destination="a", message="a", reply_to=name),
            "reply_to",
        ),
    ],
    ids=["publish", "publish, reply_to", "collect", "spark", "sensor", "request, reply_to"],
)
def test_nor_does_a_template_bring_one_into_a_destination(make: Callable[[str], Any], field: str) -> None:
    operator = make("{{ params.name }}")
    operator.render_template_fields({"params": {"name": "jmsjca://?name=orders&prefetch=5"}})
    operator = make("{{ params.name }}")
    with pytest.raises(
        ConfigurationError, match=rf"^\w+: {field} holds a secret.*Airflow connection"
    ) as caught:
        operator.render_template_fields({"params": {"name": f"jmsjca://?name=orders&token={MARK}"}})
    assert MARK not in str(caught.value)


@pytest.fixture(params=[MARK, json.dumps({"api_key": MARK}), f"stomp://app:{MARK}@db", f'{{"type": "{MARK}"'])
def variable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AIRFLOW_VAR_THEIRS", request.param)
    return str(request.param)


def test_the_value_of_a_variable_is_not_shown(variable: str) -> None:
    """Any variable may be named; most aren't ours."""
    with pytest.raises(ConfigurationError) as caught:
        find_destination("lookup://theirs")
    assert "the Airflow variable 'theirs'" in str(caught.value)
    assert MARK not in str(caught.value)
    assert variable not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_spec_is_written_without_a_password_in_its_user() -> None:
    spec = ActivationSpec(destination="queue://orders", username=f"stomp://app:{MARK}@broker")
    assert MARK not in spec.to_yaml()
    assert "left out, because secret: username" in spec.to_yaml()
    assert spec.to_yaml(secrets=True).count(MARK) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda name: JmsPublishOperator(task_id="t", destination=name, messages="a"),
        lambda name: JmsCollectOperator(task_id="t", destination=name),
        lambda name: JmsPublishOperator(task_id="t", destination="a", messages="a", reply_to=name),
        lambda name: JmsToSparkSubmitOperator(task_id="t", destination="a", dead_letter_destination=name),
        lambda name: JmsSensor(task_id="t", destination=name),
        lambda name: JmsNotifier(destination="a", messages="a", reply_to=name),
        find_destination,  # what triggers come to
    ],
)
def test_nor_does_one_among_the_options_of_a_destination(make: Callable[[str], Any]) -> None:
    with pytest.raises(ConfigurationError, match="secret") as caught:
        make(f"jmsjca://?name=queue://orders&token={MARK}")
    assert MARK not in str(caught.value)
    assert make("jmsjca://?name=queue://orders&prefetch=5") is not None


DESTINATION_OF: dict[str, tuple[Any, dict[str, Any]]] = {
    "publish": (JmsPublishOperator, {"messages": ["x"]}),
    "collect": (JmsCollectOperator, {"max_messages": 1}),
    "submit": (JmsToSparkSubmitOperator, {"max_messages": 1}),
    "sensor": (JmsSensor, {}),
    "request": (JmsRequestOperator, {"message": "x", "reply_to": "answers"}),
}


@pytest.mark.parametrize("how", ["partial", "over", "kwargs"])
@pytest.mark.parametrize("which", DESTINATION_OF)
def test_a_mapped_operator_refuses_a_secret_in_a_destination(which: str, how: str) -> None:
    operator, rest = DESTINATION_OF[which]
    secret = f"jmsjca://?name=queue://orders&token={MARK}"
    attempts: dict[str, Callable[[], Any]] = {
        "partial": lambda: operator.partial(task_id="p", destination=secret, **rest),
        "over": lambda: operator.partial(task_id="o", **rest).expand(destination=["queue://a", secret]),
        "kwargs": lambda: operator.partial(task_id="k", **rest).expand_kwargs([{"destination": secret}]),
    }
    with DAG("secret", schedule=None, start_date=START) as dag:
        with pytest.raises(ConfigurationError) as caught:
            attempts[how]()
        operator.partial(task_id="fine", **rest).expand(destination=["queue://orders", "queue://b"])
    assert "destination holds a secret" in str(caught.value)
    assert MARK not in str(caught.value)
    written = json.dumps(DagSerialization.to_dict(dag))
    assert "queue://orders" in written
    assert MARK not in written
