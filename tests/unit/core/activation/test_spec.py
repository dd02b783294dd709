"""Activation specs: J46-J64, J76-J84, W1-W3, W13-W33, P6-P8, C14."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta

import pytest
from pydantic import BaseModel, ValidationError

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.configuration.administered import AdministeredObject
from airflow_provider_jmsjca.core.configuration.precedence import Layer, Level, resolve
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.redelivery import RedeliveryHandling
from airflow_provider_jmsjca.engine.delivering.settings import listener_settings
from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError

QUEUE = "queue://orders"


def test_jmsjca_and_our_spellings_mean_the_same_j46_j62() -> None:
    """J199, J47, J48, J49, J50, J51, J52, J53, J54, J55, J56, J57, J58, J59, J60, J61."""
    theirs = ActivationSpec(
        ConnectionURL="stomp://h:1",
        UserName="u",
        Password="p",
        ClientId="c",
        destination="prices",
        destinationType="javax.jms.Topic",
        subscriptionDurability="Durable",
        subscriptionName="s",
        ConcurrencyMode="CC",
        endpointPoolMaxSize="20",
        MBeanName="m",
        selector="a = 1",
        Options="a=b",
        RedeliveryHandling="5:1000",
        BatchSize="10",
        HoldUntilAck="1",
        ContextName="ctx",
    )
    ours = ActivationSpec(
        connection_url="stomp://h:1",
        username="u",
        password="p",
        client_id="c",
        destination="prices",
        destination_type="topic",
        subscription_durability="durable",
        subscription_name="s",
        concurrency_mode="cc",
        endpoint_pool_max_size=20,
        name="m",
        message_selector="a = 1",
        options={"a": "b"},
        redelivery_handling="5:1000",
        batch_size=10,
        hold_until_ack=True,
        context_name="ctx",
    )
    assert theirs == ours
    assert hash(theirs) == hash(ours)
    assert theirs.destinations == (Destination.topic("prices"),)
    assert (theirs.batch_size, theirs.hold_until_ack, theirs.endpoint_pool_max_size) == (10, True, 20)


def test_defaults_j52_j54_j55_j63_j64() -> None:
    spec = ActivationSpec(destination=QUEUE)
    assert spec.redelivery == RedeliveryHandling.DEFAULT
    assert (spec.durable, spec.batch_size, spec.hold_until_ack, spec.transacted) == (False, 1, False, True)
    assert (spec.endpoint_pool_max_size, spec.pool_initial_size) == (15, 10)
    assert spec.batch_idle_timeout == timedelta(milliseconds=100)
    assert spec.title == QUEUE
    assert spec.selector_for() is None
    assert spec.client_id_for() is None


def test_endpoint_fields_j63() -> None:
    spec = ActivationSpec(
        destination=QUEUE,
        acknowledgeMode="Dups-ok-acknowledge",
        endpointPoolSteadySize=3,
    )
    assert spec.acknowledge_mode.value == "dups_ok_acknowledge"
    assert spec.endpoint_pool_steady_size == 3


@pytest.mark.parametrize(
    ("mode", "kind", "expected"),
    [
        ("serial", DestinationKind.QUEUE, 1),
        ("cc", DestinationKind.QUEUE, 15),
        ("cc", DestinationKind.TOPIC, 15),
        ("sync", DestinationKind.QUEUE, 15),
        ("sync", DestinationKind.TOPIC, 1),
    ],
)
def test_handlers_at_once_j81_j84(mode: str, kind: DestinationKind, expected: int) -> None:
    """J82, J83."""
    spec = ActivationSpec(destination="d", destination_type=kind, concurrency_mode=mode)
    assert spec.concurrency_for(kind) == expected


def test_steady_size_follows_a_small_maximum_w1_w2() -> None:
    assert ActivationSpec(destination=QUEUE, endpoint_pool_max_size=4).pool_initial_size == 4
    spec = ActivationSpec(
        **{"destination": QUEUE, "max-beans-in-free-pool": 5, "initial-beans-in-free-pool": 2}
    )
    assert (spec.endpoint_pool_max_size, spec.pool_initial_size) == (5, 2)


@pytest.mark.parametrize(
    ("fields", "factory", "expected"),
    [
        ({}, None, "s"),
        ({"ejb-name": "Bean"}, None, "Bean"),
        ({"ejb-name": "Bean", "jms-client-id": "j"}, None, "j"),
        ({"ejb-name": "Bean", "jms-client-id": "j"}, "f", "f"),
        ({"ClientId": "c", "jms-client-id": "j"}, "f", "c"),
        ({"ClientId": ""}, None, "s"),
        ({"jms-client-id": "j", "generate-unique-jms-client-id": "True"}, None, "j-host1"),
    ],
)
def test_client_id_j49_w30_w31(fields: dict[str, str], factory: str | None, expected: str) -> None:
    spec = ActivationSpec(
        destination="topic://t", subscription_durability="durable", subscription_name="s", **fields
    )
    assert spec.client_id_for(factory_client_id=factory, instance="host1") == expected


def test_distributed_subscription_j204_j206() -> None:
    spec = ActivationSpec(
        destination="topic://t",
        subscription_durability="durable",
        subscription_name="jmsjca://?distribution=1&subscribername=s",
        selector="sub = '${subscribername}'",
    )
    assert spec.durable_name == "s"
    assert spec.subscription is not None
    assert spec.subscription.distributed
    assert spec.selector_for() == "sub = 's'"


def test_selector_with_override_j178_j180_j182() -> None:
    spec = ActivationSpec(
        destination="topic://t",
        subscription_durability="durable",
        subscription_name="sub47",
        selector="msgtype = 1",
        options="JMSJCA.selector=(sub = null or sub = '${subscribername}') ${andselector}".replace(
            "sub = null", "sub IS NULL"
        ),
    )
    assert spec.selector_for() == "(sub IS NULL or sub = 'sub47') and (msgtype = 1)"
    assert spec.replace(selector=None).selector_for() == "(sub IS NULL or sub = 'sub47')"
    blank = ActivationSpec(destination="queue://q", selector_override="${selector}\n")
    assert blank.selector_for() is None


def test_weblogic_elements_w14_w20() -> None:
    """W16, W44, W45."""
    spec = ActivationSpec(
        **{
            "destination-jndi-name": "jms/orders",
            "destination-type": "javax.jms.Queue",
            "connection-factory-jndi-name": "jms/cf",
            "provider-url": "t3://localhost:7001",
            "initial-context-factory": "weblogic.jndi.WLInitialContextFactory",
            "jms-polling-interval-seconds": "20",
            "durable-subscription-deletion": "True",
            "max-messages-in-transaction": "3",
            "init-suspend-seconds": "5",
            "max-suspend-seconds": "60",
            "trans-timeout-seconds": "0",
            "transaction-type": "Bean",
            "distributed-destination-connection": "EveryMember",
            "idle-timeout-seconds": "600",
        }
    )
    assert spec.destination == ("lookup://jms/orders",)
    objects = {"jms/orders": AdministeredObject.parse("queue://q")}
    assert spec.destinations_from(objects) == (Destination.queue("q"),)
    assert (spec.jms_conn_id, spec.connection_url) == ("jms/cf", "t3://localhost:7001")
    assert (spec.polling_interval, spec.suspend_interval) == (timedelta(seconds=20), timedelta(seconds=5))
    assert spec.effective_transaction_timeout == timedelta(seconds=30)
    assert spec.pool_idle_timeout == timedelta(minutes=10)
    assert (spec.transacted, spec.durable_subscription_deletion) == (False, True)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, 60),
        ({"max-suspend-seconds": 0}, 0),
        ({"max-suspend-seconds": 30}, 30),
        ({"init-suspend-seconds": 5}, 5),
        ({"init-suspend-seconds": 90, "max-suspend-seconds": 0}, 0),
    ],
)
def test_suspension_w24_w26(fields: dict[str, int], seconds: int) -> None:
    assert ActivationSpec(destination=QUEUE, **fields).suspend_interval == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("fields", "transacted"),
    [
        ({}, True),
        ({"transaction-type": "Container", "trans-attribute": "Required"}, True),
        ({"transaction-type": "Container", "trans-attribute": "NotSupported"}, False),
        ({"transaction-type": "Bean"}, False),
        ({"Options": "JMSJCA.ForceBMT=true"}, False),
    ],
)
def test_who_ends_the_transaction_w21_w23_j105(fields: dict[str, str], transacted: bool) -> None:
    """J22, J127."""
    assert ActivationSpec(destination=QUEUE, **fields).transacted is transacted


@pytest.mark.parametrize(
    ("fields", "handling"),
    [
        ({"max_attempts": 1, "redelivery_delay": 5}, "1:move(queue:dlq)"),
        ({"max_attempts": 2, "redelivery_delay": 0.5}, "1:500; 2:move(queue:dlq)"),
        ({"max_attempts": 5}, "5:move(queue:dlq)"),
        ({"redelivery_delay": "2s"}, "1:2000"),
    ],
)
def test_attempts_and_delay_p6_p8(fields: dict[str, object], handling: str) -> None:
    spec = ActivationSpec(destination=QUEUE, dead_letter_destination="dlq", **fields)
    assert str(spec.redelivery) == handling


def test_client_properties_c14() -> None:
    spec = ActivationSpec(
        **{
            "destination": QUEUE,
            "Delay": "5:1000, 10:5000",
            "Move/Delete after N times": 50,
            "Action": "move",
            "Move to queue/topic": "auto",
            "Move to destination name": "dlq$error",
        }
    )
    assert str(spec.redelivery) == "5:1000; 10:5000; 50:move(same:dlq$error)"
    assert str(ActivationSpec(destination=QUEUE, Delay="5:1000").redelivery) == "5:1000"


@pytest.mark.parametrize(
    ("spelling", "hint"),
    [
        ("max-attempts", "max_attempts"),
        ("allowMessageDelays", "allow_message_delays"),
        ("InputDestination", "destination"),
        ("PollQuantity", "poll_quantity"),
        ("ErrorDestination", "error_destination"),
    ],
)
def test_names_of_files_that_are_imported_are_unknown_in_a_spec(spelling: str, hint: str) -> None:
    """P6, I49: `airflow jms import` turns them into options."""
    with pytest.raises(ConfigurationError) as caught:
        ActivationSpec(destination=QUEUE, **{spelling: "1"})
    assert str(caught.value) == f"{spelling}: unknown option (did you mean {hint}?)"


def test_lookup_and_options_of_a_destination_j87_j91() -> None:
    spec = ActivationSpec(destination="lookup://orders", destinationType="javax.jms.Queue")
    assert spec.destinations_from({"orders": AdministeredObject.parse("queue://q")}) == (
        Destination.queue("q"),
    )
    with pytest.raises(ConfigurationError, match="no such administered object"):
        assert spec.destinations
    named = ActivationSpec(destination="jmsjca://?name=q&a=b", destination_type="queue")
    assert named.destination_references[0].options == (("a", "b"),)


def test_own_options_take_the_place_of_fields_j143_j96() -> None:
    spec = ActivationSpec(
        destination=QUEUE,
        RedeliveryHandling="1:1",
        BatchSize=5,
        Options="JMSJCA.sep=,JMSJCA.concurrencymode=CC,JMSJCA.redeliveryhandling=2:2,a=b",
    )
    assert (spec.concurrency_mode.value, str(spec.redelivery)) == ("cc", "2:2")
    resolved = resolve([spec.layer()])
    assert str(resolved.origin("concurrency_mode")) == f"activation {QUEUE}: Options, JMSJCA.concurrencymode"
    assert resolved.broker_options["a"][0] == "b"


def test_the_spec_in_force_j31() -> None:
    spec = ActivationSpec(
        destination=QUEUE, batch_size=5, concurrency_mode="sync", connection_url="lookup://prod"
    )
    connector = Layer(level=Level.CONNECTOR, fields={"redelivery_redirect": "true", "no_xa": 1})
    factory = Layer(
        level=Level.CONNECTION_FACTORY, fields={"connection_url": "stomp://h?JMSJCA.redeliveryhandling=2:2"}
    )
    in_force = ActivationSpec.from_resolved(resolve([connector, spec.layer()], {"prod": factory}))
    assert (in_force.batch_size, in_force.redelivery_redirect, str(in_force.redelivery)) == (5, True, "2:2")
    assert in_force.without_effect == ()  # the connector reports its own
    spec = spec.replace(ejb_class="a.B")
    assert "ejb_class" in str(
        ActivationSpec.from_resolved(resolve([spec.layer()], {"prod": factory})).without_effect
    )
    assert in_force.connection_url is None


@pytest.mark.parametrize(
    ("fields", "handling"),
    [
        ({"redelivery_handling": "9:9"}, "2:move(queue:dlq)"),
        ({"Options": "JMSJCA.redeliveryhandling=9:9"}, "9:9"),
    ],
)
def test_attempts_against_the_handling_of_a_lower_level_j143(fields: dict[str, str], handling: str) -> None:
    spec = ActivationSpec(destination=QUEUE, max_attempts=2, dead_letter_destination="dlq")
    in_force = ActivationSpec.from_resolved(
        resolve([Layer(level=Level.CONNECTOR, fields=fields), spec.layer()])
    )
    assert str(in_force.redelivery) == handling


def test_levels_that_contradict_each_other_are_refused() -> None:
    spec = ActivationSpec(destination=QUEUE, batch_size=5, concurrency_mode="sync")
    connector = Layer(level=Level.CONNECTOR, fields={"Options": "JMSJCA.concurrencymode=serial"})
    with pytest.raises(ConfigurationError, match="got serial, expected sync or cc for batches of 5"):
        ActivationSpec.from_resolved(resolve([connector, spec.layer()]))


def test_non_retryable_classes() -> None:
    spec = ActivationSpec(
        destination=QUEUE, non_retryable=[PoisonMessageError, "ValueError"], dead_letter_destination="d"
    )
    assert spec.non_retryable == ("airflow_provider_jmsjca.errors.PoisonMessageError", "ValueError")


def test_is_frozen_pickles_and_copies() -> None:
    spec = ActivationSpec(destination=QUEUE, password="p", BatchSize=1)
    with pytest.raises(ValidationError):
        spec.batch_size = 3  # type: ignore[misc]  # that is the point
    for twin in (pickle.loads(pickle.dumps(spec)), copy.deepcopy(spec), spec.model_copy()):  # noqa: S301  # our own bytes
        assert twin == spec
        assert twin.layer().fields == spec.layer().fields


def test_replace_checks_again() -> None:
    spec = ActivationSpec(destination=QUEUE, BatchSize=5, concurrency_mode="cc")
    assert spec.replace(batch_size=7).batch_size == 7
    assert spec.replace(batch_size=None).batch_size == 1
    with pytest.raises(ConfigurationError, match="got serial"):
        spec.replace(ConcurrencyMode="serial")


def test_secrets_are_never_shown() -> None:
    spec = ActivationSpec(
        destination=QUEUE,
        password="hunter2",
        connection_url="stomp://u:hunter2@h:1?password=hunter2",
        options="secret=hunter2\na=b",
    )
    for text in (repr(spec), str(spec), spec.to_yaml(), repr(spec.layer())):
        assert "hunter2" not in text
    assert spec.password == "hunter2"
    with pytest.raises(ConfigurationError) as caught:
        spec.replace(batch_size="x", options="JMSJCA.foo=hunter2", password=["hunter2"])
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        ActivationSpec.model_validate({"password": "hunter2", "bogus": 1})
    assert "hunter2" not in str(caught.value)


def test_what_only_looks_like_a_secret_is_written() -> None:
    spec = ActivationSpec(
        destination=QUEUE, selector="token = 5", connection_url="failover:(stomp://a:1)?x=y", options=" a = b"
    )
    assert spec.to_yaml() == (
        "destination: queue://orders\n"
        "message_selector: token = 5\n"
        "connection_url: failover:(stomp://a:1)?x=y\n"
        "options: ' a = b'\n"
    )


def test_inside_another_model_no_input_is_shown() -> None:
    class Holder(BaseModel):
        spec: ActivationSpec

    with pytest.raises(ValidationError) as caught:
        Holder.model_validate({"spec": {"password": "hunter2", "bogus": 1}})
    assert "bogus: unknown option" in str(caught.value)
    assert "hunter2" not in str(caught.value.errors(include_input=False))
    assert Holder.model_validate({"spec": {"destination": QUEUE}}).spec == ActivationSpec(destination=QUEUE)


@pytest.mark.parametrize(
    ("fields", "retries"),
    [
        ({}, None),
        ({"redelivery_handling": "3:move(queue:d)"}, None),
        ({"max_attempts": 3, "dead_letter_destination": "d"}, 5),
        ({"max_attempts": 3, "dead_letter_destination": "d", "limbo_delivery_retry": 2}, 2),
        ({"redelivery_handling": "3:move(queue:d)", "limbo_delivery_retry": 5}, 5),
        ({"limbo_delivery_retry": 0}, 0),
    ],
)
def test_failed_moves_are_tried_again_where_patch_bay_is_meant_p16(
    fields: dict[str, object], retries: int | None
) -> None:
    assert ActivationSpec(destination=QUEUE, **fields).move_retries == retries
    assert listener_settings(ActivationSpec(destination=QUEUE, **fields)).delivery.move_retries == retries
