"""The option table: J31-J64, J92-J113, C14, W13-W20, P16, I14."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.activation.fields import ActivationFields
from airflow_provider_jmsjca.core.options import (
    OPTIONS,
    OPTIONS_BY_NAME,
    Level,
    OptionType,
    option_by_field,
    option_by_key,
    read_value,
)
from airflow_provider_jmsjca.transports.base import ConnectionSettings

JMSJCA_FIELDS = {
    # J32-J37, J38-J44
    "ConnectionURL": "CFA", "UserName": "CFA", "Password": "CFA", "MBeanObjectName": "C",
    "MBeanServerDomain": "C", "Options": "CFA", "ClientId": "FA", "ProducerPooling": "CF",
    "IdleTimeout": "CF",
    # J50-J63
    "destination": "A", "destinationType": "A", "subscriptionDurability": "A", "subscriptionName": "A",
    "ConcurrencyMode": "CFA", "endpointPoolMaxSize": "A", "MBeanName": "A", "selector": "A",
    "messageSelector": "A", "RedeliveryHandling": "CFA", "BatchSize": "A", "HoldUntilAck": "A",
    "ContextName": "A", "acknowledgeMode": "A", "endpointPoolSteadySize": "A", "endpointPoolResizeCount": "A",
}  # fmt: skip
JMSJCA_KEYS = {
    # J92-J112, J45
    "NoXA": "CFA", "LocatorClass": "CFA", "redeliveryredirect": "CFA", "redeliveryhandling": "CFA",
    "concurrencymode": "CFA", "ACC": "CF", "IgnoreTx": "CF", "BypassRA": "CF", "Strict": "CF", "sep": "CFA",
    "nocfcache": "CF", "messagewrapping": "CFA", "selector": "CFA", "ForceBMT": "CFA", "idletimeout": "CF",
    "producerpooling": "CF", "minimalreconnectlogging": "CFA", "minimalreconnectloggingds": "CFA",
    "interceptorsvcname": "CFA", "overrideissamerm": "CFA", "receivetimeout": "CFA",
    "poolmaxsize": "CF", "poolminsize": "CF", "pooltimeout": "CF",
}  # fmt: skip
OTHER_FIELDS = [
    # W13
    "ejb-name", "ejb-class", "transaction-type", "acknowledge-mode", "destination-type",
    "subscription-durability", "trans-attribute",
    # W14, W16, W20
    "timer-descriptor", "destination-jndi-name", "initial-context-factory", "provider-url",
    "connection-factory-jndi-name", "jms-polling-interval-seconds", "jms-client-id",
    "generate-unique-jms-client-id", "durable-subscription-deletion", "max-messages-in-transaction",
    "init-suspend-seconds", "max-suspend-seconds",
    # W1-W3, W6, W10, W17-W19, W39, W42
    "initial-beans-in-free-pool", "max-beans-in-free-pool", "idle-timeout-seconds", "dispatch-policy",
    "resource-adapter-jndi-name", "connection-factory-resource-link", "destination-resource-link",
    "distributed-destination-connection", "trans-timeout-seconds", "message-destination-ref-name",
    "message-destination-type", "message-destination-usage", "message-destination-link",
    "start-mdbs-with-application", "security-role-assignment",
    # C14
    "Delay", "Move/Delete after N times", "Action", "Move to queue/topic", "Move to destination name",
]  # fmt: skip
DEFAULTS: dict[str, object] = {
    "IdleTimeout": timedelta(seconds=30),  # J43
    "subscriptionDurability": "non_durable",  # J52
    "ConcurrencyMode": "serial",  # J54
    "endpointPoolMaxSize": 15,  # J55
    "acknowledgeMode": "auto_acknowledge",  # J63
    "endpointPoolSteadySize": 10,
    "RedeliveryHandling": "3:25; 5:50; 10:100; 20:1000; 50:5000",  # J64, J148
    "jms-polling-interval-seconds": timedelta(seconds=10),  # W16
    "durable-subscription-deletion": False,  # W17
    "generate-unique-jms-client-id": False,
    "distributed-destination-connection": "local_only",
    "init-suspend-seconds": timedelta(seconds=60),  # W18, W24
    "max-suspend-seconds": timedelta(seconds=60),
    "trans-timeout-seconds": timedelta(seconds=30),
    "limbo_delivery_retry": 5,  # P16
    "allow_message_delays": False,  # P21
    "poll_quantity": 1,  # I49
    "in_doubt_events": "reprocess",  # I14
}
KEY_DEFAULTS: dict[str, object] = {
    "JMSJCA.redeliveryredirect": False,
    "JMSJCA.ACC": True,  # the document says false: it runs in an application server
    "JMSJCA.BypassRA": False,
    "JMSJCA.Strict": False,
    "JMSJCA.nocfcache": False,
    "JMSJCA.selector": None,
    "JMSJCA.ForceBMT": False,
    "JMSJCA.minimalreconnectlogging": False,
    "JMSJCA.poolmaxsize": 32,
    "JMSJCA.pooltimeout": None,
}


@pytest.mark.parametrize(("spelling", "levels"), JMSJCA_FIELDS.items())
def test_fields_of_jmsjca_and_their_levels(spelling: str, levels: str) -> None:
    """J31; J35, J36, J42: accepted."""
    option = option_by_field(spelling)
    assert option is not None
    assert spelling in option.jmsjca
    assert option.levels == levels


@pytest.mark.parametrize(("key", "levels"), JMSJCA_KEYS.items())
def test_options_of_jmsjca_and_their_levels(key: str, levels: str) -> None:
    """J45; J92, J93, J103, J107, J109, J110, J111, J112: accepted."""
    option = option_by_key(f"JMSJCA.{key}")
    assert option is not None
    assert option.levels == levels
    assert option_by_key(f"jmsjca.{key.upper()}") is option


@pytest.mark.parametrize("spelling", OTHER_FIELDS)
def test_fields_of_the_other_products(spelling: str) -> None:
    """W42."""
    option = option_by_field(spelling)
    assert option is not None
    assert spelling in [name for _, name in option.spellings()]
    assert option.allowed_at(Level.ACTIVATION)
    assert option_by_field(spelling.replace("-", "_")) is option


@pytest.mark.parametrize(("spelling", "default"), DEFAULTS.items())
def test_defaults_of_fields(spelling: str, default: object) -> None:
    """J43, J52, J54, J55, J63, J64, W16, W17, W18, P16, I14, I49."""
    option = option_by_field(spelling)
    assert option is not None
    assert option.default == default


@pytest.mark.parametrize(("key", "default"), KEY_DEFAULTS.items())
def test_defaults_of_options(key: str, default: object) -> None:
    """J45, J94, J97, J99, J100, J104, J105, J108; J102 corrected."""
    option = option_by_key(key)
    assert option is not None
    assert option.default == default


def test_no_spelling_means_two_things() -> None:
    spellings = Counter(name for option in OPTIONS for _, name in option.spellings())
    # JMSJCA's `destination` is spelled as ours.
    assert [name for name, count in spellings.items() if count > 1] == ["destination"]
    assert len(OPTIONS_BY_NAME) == len(OPTIONS)


def test_every_row_says_what_it_does() -> None:
    for option in OPTIONS:
        assert option.meaning.endswith((".", "=...", "=...; several take turns.")), option.name
        assert bool(option.acts) != bool(option.reason), option.name
        assert option.source, option.name
        assert set(option.levels) <= set("CFA"), option.name
        assert (option.choices is not None) == (option.value_type is OptionType.CHOICE), option.name


def test_every_activation_option_with_an_effect_is_a_field_of_the_spec() -> None:
    wanted = {option.name for option in OPTIONS if option.acts and option.allowed_at(Level.ACTIVATION)}
    wanted -= {"separator"}
    assert set(ActivationFields.model_fields) == wanted


def test_transport_defaults_are_those_of_the_port() -> None:
    settings = ConnectionSettings(scheme="stomp", hosts=())
    for name in ("connect_timeout", "heart_beat", "reply_timeout"):
        assert OPTIONS_BY_NAME[name].default == getattr(settings, name)


def test_secrets_are_known() -> None:
    assert {option.name for option in OPTIONS if option.secret} == {"password", "key_password"}


def test_durations_by_spelling() -> None:
    """J43, W16: the unit of a bare number goes with the name."""
    for spelling, given, expected in (
        ("idle_timeout", 30, timedelta(seconds=30)),
        ("IdleTimeout", "30000", timedelta(seconds=30)),
        ("jms-polling-interval-seconds", "20", timedelta(seconds=20)),
        ("idle_timeout", "500ms", timedelta(milliseconds=500)),
        ("IdleTimeout", "2m", timedelta(minutes=2)),
        ("batch_idle_timeout", 0.25, timedelta(milliseconds=250)),
    ):
        option = option_by_field(spelling)
        assert option is not None
        assert read_value(option, given, spelling) == expected
