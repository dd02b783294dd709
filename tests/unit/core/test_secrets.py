"""No secret is shown: put into every place that can hold one, it appears in no text made of it."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.configuration.administered import AdministeredObject, DestinationReference
from airflow_provider_jmsjca.core.configuration.explain import explain
from airflow_provider_jmsjca.core.configuration.precedence import (
    Layer,
    Level,
    call_layer,
    connector_layer,
    resolve,
)
from airflow_provider_jmsjca.core.configuration.url import ConnectionUrl
from airflow_provider_jmsjca.core.options import option_by_field, parse_options, read_value
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.settings import resolve_connection, settings_for
from airflow_provider_jmsjca.transports.base import ConnectionSettings

MARK = "Tr0ub4dor"
URLS = [
    f"stomp://app:{MARK}@broker:61613",
    f"stomp://broker:61613?username=app&password={MARK}",
    f"stomp://broker:61613?JMSJCA.key_password={MARK}&ssl.keyStorePassword={MARK}",
    f"failover:(stomp://app:{MARK}@a:1,stomp://app:{MARK}@b:2)?api_token={MARK}",
]
BROKEN_URLS = [
    f"stomp://app:{MARK}",
    f"stomp://app:{MARK}@broker:port",
    f"stomp://app:{MARK}@?password={MARK}&JMSJCA.nope=1",
    f"stomp://broker?password={MARK}&=x",
    f"stomp://broker?password=%zz{MARK}",
    f"failover:(stomp://app:{MARK}@a:x,nope://app:{MARK}@b:2)",
]
OPTIONS = [f"password={MARK}\nssl.trustStorePassword={MARK}", f"JMSJCA.sep=,JMSJCA.key_password={MARK},a=b"]
BROKEN_OPTIONS = [f"JMSJCA.nope=1\npassword={MARK}", f"JMSJCA.ACC=perhaps\napi.secret={MARK}", f"={MARK}"]


@dataclass
class AirflowConnection:
    conn_id: str = "orders"
    conn_type: str | None = "jms"
    host: str | None = "broker"
    port: int | None = None
    login: str | None = None
    password: str | None = None
    schema: str | None = None
    extra: str | None = None


def settings_of(connection: AirflowConnection) -> ConnectionSettings:
    return settings_for(connection.conn_id, resolve_connection(connection))


def texts_of(make: Callable[[], object]) -> Iterator[str]:
    """Yield every text a value, or the error instead of it, is shown as."""
    try:
        value = make()
    except ConfigurationError as error:
        yield str(error)
        yield repr(error)
        yield "".join(traceback.format_exception(error, chain=True)).replace(__file__, "")
        yield str(pickle.loads(pickle.dumps(error)))  # noqa: S301  # made here
        return
    yield repr(value)
    yield repr(copy.copy(value))
    yield f"{[value]}"


def told(layer: Layer) -> object:
    return [(row, resolve([layer])) for row in explain(resolve([layer]))]


def everywhere() -> Iterator[tuple[str, Callable[[], object]]]:
    for url in URLS + BROKEN_URLS:
        yield f"url {url}", lambda url=url: ConnectionUrl.parse(url)
        yield f"spec {url}", lambda url=url: ActivationSpec(destination="queue://q", ConnectionURL=url)
        yield f"call {url}", lambda url=url: told(call_layer(url, MARK))
        yield f"connector {url}", lambda url=url: told(connector_layer({"connection_url": url}))
        yield f"environment {url}", lambda url=url: told(connector_layer({}, {"JMSJCA_CONNECTIONURL": url}))
        yield f"factory {url}", lambda url=url: settings_of(AirflowConnection(host=url, port=7))
        yield f"destination {url}", lambda url=url: DestinationReference.parse(f"jmsjca://?name={url}")
    for text in OPTIONS + BROKEN_OPTIONS:
        extra = json.dumps({"options": text})
        yield f"spec {text}", lambda text=text: ActivationSpec(destination="queue://q", Options=text)
        yield f"factory {text}", lambda extra=extra: told_of(AirflowConnection(extra=extra))
        yield f"connector {text}", lambda text=text: told(connector_layer({"options": text}))
        yield (
            f"object {text}",
            lambda text=text: AdministeredObject.parse({"name": "queue://q", "nope": 1, "options": text}),
        )
    for fields in (
        {"Password": MARK},
        {"password": MARK, "batch_size": "many"},
        {"password": [MARK]},
        {"password": {"a": MARK}},
        {"Password": MARK, "password": f"{MARK}2"},
        {"Options": {"password": MARK, "JMSJCA.nope": "1"}},
        {"Pasword": MARK},
    ):
        yield f"spec {fields}", lambda fields=fields: ActivationSpec(destination="queue://q", **fields)
    for extra in (
        {"key_password": MARK},
        {"key_password": [MARK]},
        {"key_pasword": MARK},
        {"key_password": MARK, "heart_beat": "often"},
    ):
        yield f"extra {extra}", lambda e=extra: told_of(AirflowConnection(password=MARK, extra=json.dumps(e)))
        yield f"settings {extra}", lambda e=extra: settings_of(AirflowConnection(extra=json.dumps(e)))
    yield "extra, no JSON", lambda: told_of(AirflowConnection(extra=f'{{"key_password": "{MARK}"'))
    yield "yaml", lambda: ActivationSpec.from_yaml(f"password: {MARK}\ndestination: [")
    yield "json", lambda: ActivationSpec.from_json(f'{{"password": "{MARK}", }}')
    yield "xml", lambda: ActivationSpec.from_xml(f"<activationspec><Password>{MARK}</Passwort>")


def told_of(connection: AirflowConnection) -> object:
    return explain(resolve_connection(connection))


CASES = list(everywhere())


@pytest.mark.parametrize(("name", "make"), CASES, ids=[str(number) for number in range(len(CASES))])
def test_no_secret_is_shown(name: str, make: Callable[[], object]) -> None:
    for text in texts_of(make):
        # A traceback shows the lines of this file, never the values in them.
        assert MARK not in text, name


def test_the_spec_is_written_without_them() -> None:
    for fields in ({"password": MARK}, {"ConnectionURL": URLS[0]}, {"Options": OPTIONS[0]}):
        assert MARK not in ActivationSpec(destination="queue://q", **fields).to_yaml()


@pytest.mark.parametrize("spelling", ["password", "key_password"])
def test_a_value_of_the_wrong_type_is_not_shown(spelling: str) -> None:
    option = option_by_field(spelling)
    assert option is not None
    with pytest.raises(ConfigurationError) as caught:
        read_value(option, [MARK], spelling)
    assert MARK not in str(caught.value)


def test_nothing_is_hidden_from_who_needs_it() -> None:
    """The mark would be missed above if the parsers lost it."""
    assert ConnectionUrl.parse(URLS[0]).password == MARK
    assert parse_options(OPTIONS[0])["password"] == MARK
    resolved = resolve([Layer(level=Level.CONNECTION_FACTORY, fields={"password": MARK})])
    assert resolved["password"] == MARK
    assert dict(settings_of(AirflowConnection(host=URLS[2])).options) == {"ssl.keyStorePassword": MARK}
