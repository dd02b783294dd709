"""Levels of configuration: J31-J48, J66-J80, J92, J98, J113, J143, J178, C4, C12, C13."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from itertools import permutations

import pytest

from airflow_provider_jmsjca.core.configuration.precedence import (
    Layer,
    Level,
    Resolved,
    SourceKind,
    call_layer,
    connector_layer,
    resolve,
)
from airflow_provider_jmsjca.core.configuration.url import ConnectionUrl
from airflow_provider_jmsjca.errors import ConfigurationError


def connector(**fields: object) -> Layer:
    return Layer(level=Level.CONNECTOR, source="[jmsjca]", fields=fields)


def factory(name: str = "prod", **fields: object) -> Layer:
    return Layer(level=Level.CONNECTION_FACTORY, source=f"connection {name!r}", fields=fields)


def activation(fields: Mapping[str, object] | None = None, **more: object) -> Layer:
    return Layer(level=Level.ACTIVATION, source="activation orders", fields={**(fields or {}), **more})


def test_higher_levels_win_j31_j38_j46_j66() -> None:
    """J39."""
    layers = [
        connector(ConnectionURL="stomp://ra", UserName="ra", redelivery_handling="1:1"),
        factory(ConnectionURL="stomp://mcf", UserName="mcf"),
        activation(ConnectionURL="stomp://spec", send_login_to_other_hosts=True),
    ]
    for order in permutations(layers):
        resolved = resolve(order)
        assert str(resolved.url) == "stomp://spec"
        assert resolved["username"] == "mcf"
        assert resolved["redelivery_handling"] == "1:1"
        assert resolved["heart_beat"] == timedelta(seconds=5)


@pytest.mark.parametrize(
    ("fields", "expected", "origin"),
    [
        ({"redelivery_handling": "1:1"}, "1:1", "connection 'prod': redelivery_handling"),
        (
            {"redelivery_handling": "1:1", "Options": "JMSJCA.redeliveryhandling=2:2"},
            "2:2",
            "connection 'prod': Options, JMSJCA.redeliveryhandling",
        ),
        (
            {
                "redelivery_handling": "1:1",
                "Options": "JMSJCA.redeliveryhandling=2:2",
                "ConnectionURL": "stomp://h?JMSJCA.redeliveryhandling=3:3",
            },
            "3:3",
            "connection 'prod': URL, JMSJCA.redeliveryhandling",
        ),
        ({}, "3:25; 5:50; 10:100; 20:1000; 50:5000", "default"),
    ],
)
def test_field_then_options_then_url_j113_c4(fields: dict[str, object], expected: str, origin: str) -> None:
    """J95."""
    resolved = resolve([factory(**fields)])
    assert resolved["redelivery_handling"] == expected
    assert str(resolved.origin("redelivery_handling")) == origin


def test_option_replaces_the_field_of_every_level_j143_c12() -> None:
    resolved = resolve(
        [
            connector(Options="JMSJCA.redeliveryhandling=1:1"),
            activation(RedeliveryHandling="2:2", ConcurrencyMode="cc"),
        ]
    )
    assert resolved["redelivery_handling"] == "1:1"
    assert resolved.origin("redelivery_handling").place is SourceKind.OPTIONS
    assert resolved["concurrency_mode"] == "cc"


def test_a_clients_own_option_beats_the_servers_c13() -> None:
    resolved = resolve(
        [
            connector(ConnectionURL="stomp://h?JMSJCA.redeliveryhandling=1:1"),
            activation(Options="JMSJCA.redeliveryhandling=2:2"),
        ]
    )
    assert resolved["redelivery_handling"] == "2:2"


def test_other_options_yield_to_a_higher_field() -> None:
    resolved = resolve([factory(ConnectionURL="stomp://h?prefetch=1"), activation(prefetch=5)])
    assert resolved["prefetch"] == 5


def test_options_merge_by_level_j72_and_others_go_to_the_broker() -> None:
    """J37, J44, J58."""
    resolved = resolve(
        [
            connector(Options="a=ra\nb=ra\nJMSJCA.ForceBMT=true"),
            factory(Options="b=mcf\nc=mcf"),
            activation(Options="c=spec", ConnectionURL="stomp://h?d=url&c=url"),
        ]
    )
    assert {key: value for key, (value, _) in resolved.broker_options.items()} == {
        "a": "ra",
        "b": "mcf",
        "c": "url",
        "d": "url",
    }
    assert resolved["force_bmt"] is True


def test_lookup_takes_the_pools_url_j69() -> None:
    resolved = resolve(
        [connector(ConnectionURL="stomp://ra"), activation(ConnectionURL="lookup://prod")],
        {"prod": factory(ConnectionURL="stomp://mcf")},
    )
    assert str(resolved.url) == "stomp://mcf"
    assert resolved["connection_url"] == "stomp://mcf"


def test_lookup_of_a_pool_without_url_takes_the_connectors_j69() -> None:
    """J32."""
    resolved = resolve(
        [connector(ConnectionURL="stomp://ra"), activation(ConnectionURL="lookup://prod")],
        {"prod": factory()},
    )
    assert str(resolved.url) == "stomp://ra"


@pytest.mark.parametrize(
    ("spec", "pool", "ra", "expected"),
    [
        ({"UserName": "s", "Password": "sp"}, {"UserName": "m", "Password": "mp"}, {}, ("s", "sp")),
        ({}, {"UserName": "m", "Password": "mp"}, {"UserName": "r", "Password": "rp"}, ("m", "mp")),
        ({}, {}, {"UserName": "r", "Password": "rp"}, ("r", "rp")),
        ({"UserName": "s"}, {"UserName": "m", "Password": "mp"}, {}, ("s", "mp")),
    ],
)
def test_lookup_credentials_j70_j71(
    spec: dict[str, object], pool: dict[str, object], ra: dict[str, object], expected: tuple[str, str]
) -> None:
    """J33, J34, J47, J48."""
    resolved = resolve(
        [connector(**ra), activation(spec, ConnectionURL="lookup://prod")],
        {"prod": factory(ConnectionURL="stomp://h", **pool)},
    )
    assert (resolved["username"], resolved["password"]) == expected


def test_lookup_options_j72() -> None:
    resolved = resolve(
        [
            connector(Options="JMSJCA.idletimeout=1\na=ra"),
            activation(ConnectionURL="lookup://prod?JMSJCA.ForceBMT=true", Options="a=spec"),
        ],
        {"prod": factory(Options="JMSJCA.idletimeout=2000\na=mcf", ConnectionURL="stomp://h")},
    )
    assert resolved["idle_timeout"] == timedelta(seconds=2)
    assert resolved.broker_options["a"][0] == "spec"
    assert resolved["force_bmt"] is True


def test_lookup_takes_the_place_of_the_factory_given_j68() -> None:
    resolved = resolve(
        [factory("other", UserName="other"), activation(ConnectionURL="lookup://prod")],
        {"prod": factory(ConnectionURL="stomp://h")},
    )
    assert resolved["username"] is None


def test_a_factory_may_look_up_another_j38() -> None:
    resolved = resolve(
        [activation(ConnectionURL="lookup://a")],
        {
            "a": factory("a", ConnectionURL="lookup://b"),
            "b": factory("b", ConnectionURL="stomp://b", UserName="b"),
        },
    )
    assert str(resolved.url) == "stomp://b"
    assert resolved["username"] == "b"


@pytest.mark.parametrize(
    ("connections", "fault"),
    [
        ({}, "no connection 'a' to look up"),
        ({"a": factory("a", ConnectionURL="lookup://a")}, "circle: a -> a"),
    ],
)
def test_lookup_that_leads_nowhere(connections: dict[str, Layer], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        resolve([activation(ConnectionURL="lookup://a")], connections)


def test_an_overridden_url_takes_its_secrets_with_it() -> None:
    resolved = resolve(
        [
            connector(ConnectionURL="stomp://u:p@ra?verify=false&a=b&JMSJCA.ACC=false", Options="c=d"),
            factory(ConnectionURL="stomp://mcf"),
        ]
    )
    assert (resolved["username"], resolved["password"], resolved["verify"]) == (None, None, True)
    assert list(resolved.broker_options) == ["c"]
    assert resolved["acc"] is False


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (("u", "p"), ("stomp://mcf", "u", "p")),
        ((None, None), ("stomp://mcf", "m", "mp")),
        (("stomp://mcf:61613?option=value", None), ("stomp://mcf:61613?option=value", "m", "mp")),
        (
            ("stomp://h:1?option=value&username=u&password=p", None),
            ("stomp://h:1?option=value&username=u&password=p", "u", "p"),
        ),
        (("stomp://h:1?option=value&username=u", "p"), ("stomp://h:1?option=value&username=u", "u", "p")),
    ],
)
def test_outbound_credentials_and_overloaded_user_name_j75_j76_j78_j79(
    call: tuple[str | None, str | None], expected: tuple[str, str, str]
) -> None:
    """J39, J40."""
    resolved = resolve(
        [
            connector(ConnectionURL="stomp://ra", UserName="r", Password="rp"),
            factory(ConnectionURL="stomp://mcf", UserName="m", Password="mp"),
            call_layer(*call),
        ]
    )
    assert (str(resolved.url), resolved["username"], resolved["password"]) == expected


def test_one_connector_serves_any_number_of_factories_and_servers_j67() -> None:
    connections = {
        name: factory(name, ConnectionURL=f"stomp://{name}", UserName=name)
        for name in ("amsterdam", "berlin", "cadiz", "dublin")
    }
    shared = connector(UserName="ra", redelivery_handling="1:1")
    for name, found in connections.items():
        of_factory = resolve([shared, found])
        of_activation = resolve([shared, activation(ConnectionURL=f"lookup://{name}")], connections)
        for resolved in (of_factory, of_activation):
            assert (str(resolved.url), resolved["username"]) == (f"stomp://{name}", name)
            assert resolved["redelivery_handling"] == "1:1"


def test_overloaded_user_name_with_two_passwords_is_refused_j79() -> None:
    with pytest.raises(ConfigurationError, match="password differs between") as caught:
        resolve([call_layer("stomp://h?password=hunter2", "hunter3")])
    assert "hunter" not in str(caught.value)


def test_inbound_credentials_j77() -> None:
    ra = connector(UserName="r", Password="rp")
    assert resolve([ra, activation(UserName="s", Password="sp")])["username"] == "s"
    assert resolve([ra, activation()])["username"] == "r"


LED_AWAY = [
    ("stomp://prod", "stomp://elsewhere", "names another host, elsewhere"),
    ("stomp://prod:1", "stomp://PROD:2", "names another port, prod:2"),
    ("stomp://[::1]:1", "stomp://[::1]", "names another port, [::1]:61613"),
    ("stomp://a:1,b:2", "stomp://a:2", "names another port, a:2"),
    ("stomp://prod", "stomp+ssl://prod:7", "names another port, prod:7"),
    ("stomp://prod:7", "stomp+ssl://prod", "names another port, prod:61614"),
    ("stomp://prod", "stomp+ssl://prod?ca_file=/mine.pem", "names another port, prod:61614"),
    ("vm://prod", "stomp://prod", "names another port, prod:61613"),
    ("stomp://a,b", "stomp://b,c", "names another host, c"),
    ("stomp+ssl://prod:7", "stomp://prod:7", "has no TLS (stomp://)"),
    ("stomp+ssl://prod", "stomp+ssl://prod?verify=false", "doesn't check the broker's certificate (verify)"),
    (
        "stomp+ssl://prod?ca_file=/prod.pem",
        "stomp+ssl://prod?ca_file=/mine.pem",
        "trusts /mine.pem, not /prod.pem (ca_file)",
    ),
    ("stomp+ssl://prod", "stomp+ssl://prod?ca_file=/m.pem", "trusts /m.pem, not the system's (ca_file)"),
    ("stomp+ssl://prod?ca_file=/p.pem", "stomp+ssl://prod", "trusts the system's, not /p.pem (ca_file)"),
    (
        "stomp+ssl://prod",
        "stomp+ssl://prod?JMSJCA.server_name=mine",
        "expects mine in the broker's certificate (server_name)",
    ),
    (
        "stomp+ssl://prod?server_name=broker",
        "stomp+ssl://prod",
        "expects prod in the broker's certificate (server_name)",
    ),
    ("stomp+ssl://a,b", "stomp+ssl://a,b?server_name=b", "expects b in the broker's certificate"),
]
NOT_LED_AWAY = [
    ("stomp://prod", "stomp://PROD:61613?prefetch=5&heart_beat=2&connect_timeout=3&own=x"),
    ("stomp+ssl://prod:61614", "stomp+ssl://prod"),
    ("stomp://a,b", "stomp://b,a"),
    ("stomp://a:1,b", "failover:(stomp://B:61613,stomp://a:1)?reply_timeout=5"),
    ("stomp+ssl://a,b", "stomp+ssl://b"),
    ("stomp+ssl://prod?verify=false", "stomp+ssl://prod"),
    ("stomp+ssl://prod?verify=false", "stomp+ssl://prod?ca_file=/mine.pem&server_name=mine"),
    ("stomp+ssl://prod?ca_file=/p.pem&server_name=x", "stomp+ssl://prod?server_name=X&ca_file=/p.pem"),
    ("stomp+ssl://prod", "stomp+ssl://prod?server_name=PROD&verify=true"),
    ("stomp://prod", "stomp+ssl://prod"),
    ("stomp://prod:61613", "stomp+ssl://prod:61614"),
    ("stomp://prod:7", "stomp+ssl://prod:7?ca_file=/mine.pem"),  # plain, anybody could pose as the broker
    ("stomp://prod", "vm://tests?verify=false"),  # leads nowhere
]


@pytest.mark.parametrize(("known", "given", "why"), LED_AWAY)
@pytest.mark.parametrize("of_call", [False, True])
def test_credentials_are_not_led_away_unasked(known: str, given: str, why: str, *, of_call: bool) -> None:
    """The login of a connection is meant for its broker, and not for one that a DAG names."""

    def resolved(url: str) -> Resolved:
        above = call_layer(url, None) if of_call else activation(connection_url=url)
        return resolve([factory(connection_url=known, username="app", password="hunter2"), above])

    with pytest.raises(ConfigurationError) as caught:
        resolved(given)
    assert why in str(caught.value)
    assert "username and password of connection 'prod' would be sent" in str(caught.value)
    assert "send_login_to_other_hosts" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    asked = given + ("&" if "?" in given else "?") + "JMSJCA.send_login_to_other_hosts=true"
    assert resolved(asked)["password"] == "hunter2"
    own = given + ("&" if "?" in given else "?") + "username=u&password=hunter3"
    assert resolved(own)["password"] == "hunter3"


@pytest.mark.parametrize(("known", "given"), NOT_LED_AWAY)
def test_the_connections_broker_may_be_written_in_another_way_or_checked_better(
    known: str, given: str
) -> None:
    below = factory(connection_url=known, username="app", password="hunter2")
    for above in (call_layer(given, None), activation(connection_url=given)):
        assert resolve([below, above])["password"] == "hunter2"


@pytest.mark.parametrize(
    "said",
    [
        {"options": "JMSJCA.verify=false"},
        {"Options": "verify=false"},
        {"JMSJCA.verify": False},
        {"options": "JMSJCA.ca_file=/mine.pem"},
        {"options": "server_name=mine"},
        {"connection_url": "lookup://other?verify=false"},
        {"connection_url": "lookup://other?ca_file=/mine.pem"},
        {"connection_url": "lookup://other", "options": "JMSJCA.server_name=mine"},
        {"connection_url": "stomp+ssl://prod", "options": "JMSJCA.verify=false"},
    ],
)
def test_credentials_are_not_led_away_by_options(said: dict[str, object]) -> None:
    """A broker that isn't checked, or checked by what the spec brings, may be anybody's."""
    below = factory(connection_url="stomp+ssl://prod", username="app", password="hunter2")
    connections = {"other": factory("other", connection_url="lookup://prod"), "prod": below}
    with pytest.raises(ConfigurationError) as caught:
        resolve([below, activation(said)], connections)
    (fault,) = caught.value.faults
    assert fault.startswith("activation orders: its ")
    assert "(verify)" in fault or "(ca_file)" in fault or "(server_name)" in fault
    assert "username and password of connection 'prod' would be sent" in fault
    assert "lookup://CONNECTION_ID" in fault
    assert "send_login_to_other_hosts" in fault
    assert "hunter2" not in fault
    assert (
        resolve([below, activation(said, send_login_to_other_hosts=True)], connections)["password"]
        == "hunter2"
    )
    own = activation(said, username="me", password="hunter3")
    assert resolve([below, own], connections)["password"] == "hunter3"


def test_secret_options_for_the_broker_are_not_led_away_either() -> None:
    """They are sent as headers of CONNECT, also where the spec has a login of its own."""
    below = factory(connection_url="stomp+ssl://prod", options="api-token=hunter2\ntenant=a")
    above = {"connection_url": "stomp+ssl://elsewhere", "username": "me", "password": "hunter3"}
    with pytest.raises(ConfigurationError) as caught:
        resolve([below, activation(above)])
    (fault,) = caught.value.faults
    assert "where option api-token of connection 'prod' would be sent" in fault
    assert "hunter2" not in fault
    assert "api-token" in resolve([below, activation(above, send_login_to_other_hosts=True)]).broker_options
    harmless = factory(connection_url="stomp+ssl://prod", options="tenant=a")
    assert "tenant" in resolve([harmless, activation(above)]).broker_options


def test_all_that_leads_credentials_away_is_named_under_its_own_spelling() -> None:
    below = factory(connection_url="stomp+ssl://prod", username="app", password="hunter2")
    above = activation(ConnectionURL="stomp+ssl://elsewhere", options="JMSJCA.verify=false")
    with pytest.raises(ConfigurationError) as caught:
        resolve([below, above])
    (fault,) = caught.value.faults
    assert fault == (
        "activation orders: its ConnectionURL names another host, elsewhere, "
        "and its JMSJCA.verify doesn't check the broker's certificate (verify), "
        "where username and password of connection 'prod' would be sent. Expected that broker's own Airflow "
        "connection (connection_url: lookup://CONNECTION_ID), or send_login_to_other_hosts: true (in a URL "
        "JMSJCA.send_login_to_other_hosts=true) to send them there anyway"
    )


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, "JMSJCA.verify=false"),  # without a login there is nothing to lead away
        ({"username": "app", "verify": False}, "JMSJCA.verify=false\nca_file=/mine.pem"),
        ({"username": "app", "verify": False}, "JMSJCA.verify=true\nca_file=/mine.pem"),
        ({"username": "app", "ca_file": "/p.pem"}, "JMSJCA.ca_file=/p.pem\nverify=true\nserver_name=prod"),
        ({"username": "app"}, "prefetch=5\nheart_beat=2\ncertificate_file=/our.pem\nown=x"),
        ({"username": "app", "send_login_to_other_hosts": True}, "JMSJCA.verify=false"),
    ],
)
def test_options_that_check_the_broker_no_worse_lead_nothing_away(
    fields: dict[str, object], options: str
) -> None:
    below = factory(connection_url="stomp+ssl://prod", **fields)
    assert resolve([below, activation(options=options)])["username"] == fields.get("username")


def test_connector_and_connection_are_the_installations_own_word() -> None:
    ra = connector(connection_url="stomp+ssl://ra", username="ra", password="hunter2")
    weak = factory(connection_url="stomp://elsewhere", options="JMSJCA.ca_file=/mine.pem")
    assert resolve([ra, weak, activation()])["password"] == "hunter2"
    with pytest.raises(ConfigurationError, match=r"username and password of \[jmsjca\] would be sent"):
        resolve([ra, activation(connection_url="stomp+ssl://elsewhere")])


def test_a_login_of_the_spec_is_not_led_away_by_a_call() -> None:
    own = activation(connection_url="stomp+ssl://prod", username="me", password="hunter2")
    assert resolve([own, call_layer("stomp+ssl://prod:61614", None)])["password"] == "hunter2"
    with pytest.raises(ConfigurationError, match="of activation orders would be sent"):
        resolve([own, call_layer("stomp+ssl://prod?verify=false", None)])


def test_one_credential_that_would_be_led_away_is_enough() -> None:
    below = factory(connection_url="stomp://prod", username="app", password="hunter2")
    with pytest.raises(ConfigurationError, match="where password of connection 'prod' would be sent"):
        resolve([below, activation(connection_url="stomp://elsewhere", username="me")])


def test_what_a_connection_allows_holds_for_every_spec_and_one_without_an_address_allows_all() -> None:
    there = activation(connection_url="stomp://elsewhere")
    for allowed in (
        factory(connection_url="stomp://prod", username="app", send_login_to_other_hosts=True),
        factory(username="app"),
    ):
        assert resolve([allowed, there])["username"] == "app"


def test_a_connection_that_is_looked_up_brings_its_own_login() -> None:
    other = factory("other", connection_url="stomp://elsewhere", username="other")
    below = factory(connection_url="stomp://prod", username="app", password="hunter2")
    resolved = resolve([below, activation(connection_url="lookup://other")], {"other": other})
    assert (resolved["username"], resolved["password"]) == ("other", None)


def test_selector_option_j178_j104() -> None:
    resolved = resolve([connector(Options="JMSJCA.selector=a = 1"), activation(selector="b = 2")])
    assert resolved["selector_override"] == "a = 1"
    assert resolved["message_selector"] == "b = 2"
    assert (
        resolve([connector(Options="JMSJCA.selector="), activation(selector="b = 2")])["selector_override"]
        is None
    )


@pytest.mark.parametrize(
    ("fields", "ignore_tx"),
    [
        ({}, False),
        ({"acc": True}, False),
        ({"acc": False}, True),
        ({"Options": "JMSJCA.ACC=true\nJMSJCA.IgnoreTx=true"}, True),
    ],
)
def test_the_default_of_ignore_tx_depends_on_acc_j97_j98(fields: dict[str, object], ignore_tx: bool) -> None:
    assert resolve([factory(**fields)])["ignore_tx"] is ignore_tx


def test_environment_stands_for_system_properties_j97_j100() -> None:
    layer = connector_layer(
        {"username": "file", "destination.orders": "queue://q", "parameter.region": "eu", "Strict": ""},
        {
            "JMSJCA_ACC": "true",
            "JMSJCA_BYPASSRA": "1",
            "JMSJCA_BYPASS_RA": "1",
            "JMSJCA_USERNAME": "env",
            "PATH": "/bin",
        },
    )
    resolved = resolve([layer])
    assert (resolved["acc"], resolved["bypass_ra"], resolved["username"]) == (True, True, "env")
    assert str(resolved.origin("username")) == "[jmsjca]: environment variable, JMSJCA_USERNAME"


def test_environment_variable_near_to_an_option_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"JMSJCA_USRNAME: unknown option .did you mean JMSJCA_USERNAME"
    ):
        connector_layer({}, {"JMSJCA_USRNAME": "x", "JMSJCA_EXAMPLES": "5"})
    assert connector_layer({}, {"JMSJCA_EXAMPLES": "5"}).environment == {}


def test_all_faults_of_all_levels_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve(
            [
                connector(UserNam="x", password={"secret": "hunter2"}, BatchSize=3),
                factory(ConnectionURL="stomp://h:0?JMSJCA.foo=1", Options="=x"),
                activation(BatchSize="x", ConnectionURL="lookup://a?JMSJCA.sep=,"),
            ],
            {"a": factory("a", idle_timeout="soon")},
        )
    assert caught.value.faults == (
        "[jmsjca]: UserNam: unknown option (did you mean UserName?)",
        "[jmsjca]: password: got ***, expected text",
        "[jmsjca]: BatchSize: not an option of the connector level, expected at: activation",
        "connection 'prod': options, line 1: a value without a key, expected key=value",
        "connection 'prod': connection URL: port 0 of host 'h' is out of range, expected 1 to 65535",
        "connection 'prod': connection URL: unknown option JMSJCA.foo (did you mean JMSJCA.NoXA?)",
        "activation orders: BatchSize: got 'x', expected a whole number, 0 or more",
        "activation orders: URL, JMSJCA.sep: works only within the text of the option Options",
        (
            "connection 'a': idle_timeout: got 'soon', expected a number of seconds, "
            "or one with a unit such as 500ms, 30s or 5m"
        ),
    )


def test_secrets_are_not_shown() -> None:
    layers = [factory(password="hunter2", ConnectionURL="stomp://u@h", Options="secret=hunter2")]
    resolved: Resolved = resolve(layers)
    assert resolved["password"] == "hunter2"
    for shown in (repr(resolved), repr(layers), repr(resolved.value("password"))):
        assert "hunter2" not in shown


def test_a_url_value_is_taken_as_it_is() -> None:
    url = ConnectionUrl.parse("stomp://h:1")
    assert resolve([factory(connection_url=url)]).url is url
