"""Connection URLs: J3, J65, J66, J68, J73, J74, J78."""

from __future__ import annotations

import contextlib
import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.configuration.url import ConnectionUrl, is_connection_url
from airflow_provider_jmsjca.errors import ConfigurationError
from tests.unit.core.texts import ANY_TEXT

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))

VALID = [
    ("stomp://localhost:61613", "stomp", (("localhost", 61613),), "", {}),
    ("STOMP://h", "stomp", (("h", None),), "", {}),
    ("stomp+ssl://h:1/", "stomp+ssl", (("h", 1),), "/", {}),
    ("stcms://blue:18008?a=b", "stcms", (("blue", 18008),), "", {"a": "b"}),
    ("stcms://", "stcms", (), "", {}),
    ("stomp://h:1/file?a=b&c=d", "stomp", (("h", 1),), "/file", {"a": "b", "c": "d"}),
    ("stomp://h:1/a%20b", "stomp", (("h", 1),), "/a b", {}),
    ("stomp://h?a=b&amp;c=d", "stomp", (("h", None),), "", {"a": "b", "c": "d"}),
    ("stomp://h?a+b=%C3%A9+x", "stomp", (("h", None),), "", {"a b": "é x"}),
    ("stomp://h?a=1&a=2", "stomp", (("h", None),), "", {"a": "2"}),
    ("stomp://h?a=", "stomp", (("h", None),), "", {"a": ""}),
    ("stomp://h?a=b=c", "stomp", (("h", None),), "", {"a": "b=c"}),
    ("stomp://h?", "stomp", (("h", None),), "", {}),
    ("stomp://[::1]:2", "stomp", (("::1", 2),), "", {}),
    ("stomp://[2001:db8::1]", "stomp", (("2001:db8::1", None),), "", {}),
    ("stomp://h1:1,h2:2/?x=y", "stomp", (("h1", 1), ("h2", 2)), "/", {"x": "y"}),
    ("failover:(stomp://a:1,stomp://b:2)?x=y", "stomp", (("a", 1), ("b", 2)), "", {"x": "y"}),
    ("failover://(stomp://a:1)", "stomp", (("a", 1),), "", {}),
    ("failover:stomp://a:1,stomp://b?x=y", "stomp", (("a", 1), ("b", None)), "", {"x": "y"}),
    (
        "failover:(stomp://a?k=v,stomp://b?k=v)?x=y",
        "stomp",
        (("a", None), ("b", None)),
        "",
        {"k": "v", "x": "y"},
    ),
    ("vm://test", "vm", (("test", None),), "", {}),
    ("jndi://?java.naming.provider.url=x", "jndi", (), "", {"java.naming.provider.url": "x"}),
    ("jms+jndi://?factory=cf", "jms+jndi", (), "", {"factory": "cf"}),
    ("lookup://jms/connections/x", "lookup", (), "jms/connections/x", {}),
    (
        "stcms://localhost:18007?JMSJCA.redeliveryhandling=5:1000; 10:5000",
        "stcms",
        (("localhost", 18007),),
        "",
        {"JMSJCA.redeliveryhandling": "5:1000; 10:5000"},
    ),
]


@pytest.mark.parametrize(("text", "scheme", "hosts", "path", "query"), VALID)
def test_reads_j65_j66_j73_j74(
    text: str, scheme: str, hosts: tuple[tuple[str, int | None], ...], path: str, query: dict[str, str]
) -> None:
    url = ConnectionUrl.parse(text)
    assert (url.scheme, url.hosts, url.path, dict(url.query)) == (scheme, hosts, path, query)
    assert str(url) == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no scheme"),
        ("localhost:61613", "no scheme"),
        ("stomp://", "no host"),
        ("stomp://:61613", "no host"),
        ("stomp://h:0", "port 0 of host 'h' is out of range"),
        ("stomp://h:65536", "port 65536"),
        ("stomp://h:", "the port of host 'h' is not a number"),
        ("stomp://a b:1", "host 'a b'"),
        ("stomp://::1", "expected brackets"),
        ("stomp://[::g]:1", "expected an IPv6 address in brackets"),
        ("stomp://[::1]x", "expected :port"),
        ("stomp://a,,b", "no host"),
        ("stomp://h?a", "option 1 is 'a' without a value"),
        ("stomp://h?a=b&&c=d", "option 2"),
        ("stomp://h?=b", "a value without a key"),
        ("stomp://h?a=%zz", "option a: broken escape at character 1"),
        ("stomp://h?a=%ff", "option a: the percent-encoded bytes are not valid UTF-8"),
        ("stomp://h?JMSJCA.noXAA=true", "unknown option JMSJCA.noXAA (did you mean JMSJCA.NoXA?)"),
        ("lookup://", "lookup:// without a name"),
        ("failover:(stomp://a,tcp://b)", "differ in scheme"),
        ("failover:(stomp://a/x,stomp://b)", "differ in path"),
        ("failover:(stomp://a?k=1,stomp://b?k=2)", "differ in options"),
        ("failover:(stomp://a,lookup://b)", "lookup:// inside"),
        ("failover:(stomp://a)x", "text between"),
        ("failover:()", "no scheme"),
    ],
)
def test_refuses(text: str, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ConnectionUrl.parse(text)
    assert fault in str(caught.value)


def test_an_unknown_key_hides_no_unfit_value() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ConnectionUrl.parse("stomp://h:1?JMSJCA.nope=1&JMSJCA.ACC=maybe&jms.prefetch=5")
    assert [fault.partition(" (")[0] for fault in caught.value.faults] == [
        "connection URL: unknown option JMSJCA.nope",
        "connection URL: JMSJCA.ACC: got 'maybe', expected true or false",
    ]


def test_reports_all_faults_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ConnectionUrl.parse("stomp://h:99999,:1?a&JMSJCA.bogus=1")
    assert len(caught.value.faults) == 4


def test_lookup_name_j68() -> None:
    assert ConnectionUrl.parse("lookup://jms/prod").lookup == "jms/prod"
    assert ConnectionUrl.parse("stomp://jms/prod").lookup is None


def test_never_shows_secrets() -> None:
    text = "stomp://joe:hunter2@h:1?password=hunter2&JMSJCA.key_password=hunter2&jms.passCode=hunter2&a=b"
    url = ConnectionUrl.parse(text)
    assert (url.username, url.password) == ("joe", "hunter2")
    assert str(url) == text
    assert repr(url) == (
        "ConnectionUrl('stomp://***@h:1?password=***&JMSJCA.key_password=***&jms.passCode=***&a=b')"
    )


@pytest.mark.parametrize(
    "text",
    [
        "stomp://joe:hunter2",
        "stomp://joe:hunter2@h:x?y",
        "stomp://h?password=%zzhunter2",
        "stomp://joe:hunter2%zz@h",
    ],
)
def test_faults_show_no_secrets(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ConnectionUrl.parse(text)
    assert "hunter2" not in str(caught.value)


def test_secrets_in_unusual_places_are_not_shown() -> None:
    for text in ("stomp://u:hun#t er2@h", "stomp://h?pass%77ord=hunter2", "stomp://h?u=tcp://u:hunter2@x"):
        url = ConnectionUrl.parse(text)
        assert url.has_secrets
        assert "ter2" not in repr(url)
    assert not ConnectionUrl.parse("stomp://h?a=b").has_secrets


def test_recognises_urls_among_user_names_j78() -> None:
    assert is_connection_url("stcms://blue:18008?username=X")
    assert is_connection_url("failover:(stomp://a,stomp://b)")
    assert not is_connection_url("joe")
    assert not is_connection_url("DOMAIN\\joe")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("stomp://h\ud800:1", "host"),
        ("stomp://\udfffh%41", "host"),
        ("stomp://h?a=\ud800%41", "option a"),
        ("stomp://h?\ud800=1", "key of option 1"),
        ("stomp://u\ud800:secret@h", "user"),
    ],
)
def test_half_a_surrogate_pair_is_no_character(text: str, place: str) -> None:
    """J73: what is sent is UTF-8, which can't hold it; JSON and Java properties can."""
    with pytest.raises(ConfigurationError, match=f"{place}.*: lone surrogate") as caught:
        ConnectionUrl.parse(text)
    assert "secret" not in str(caught.value)


def test_pickles_and_compares_by_meaning() -> None:
    url = ConnectionUrl.parse("stomp://h:1?a=b&amp;c=d")
    assert pickle.loads(pickle.dumps(url)) == url  # noqa: S301  # our own bytes
    assert url == ConnectionUrl.parse("stomp://h:1?c=d&a=b")
    assert hash(url) == hash(ConnectionUrl.parse("stomp://h:1?c=d&a=b"))


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    ANY_TEXT
    | st.text(alphabet="stomp:/?&=%@[],.;()failover0123456789 lookupJMSJCA+#").map("stomp://{}".format)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert str(ConnectionUrl.parse(text)) == text


_KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda key: not key.lower().startswith("jmsjca.")
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(
        st.tuples(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), st.integers(1, 65535)), min_size=1
    ),
    st.dictionaries(_KEYS, st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=4),
)
def test_what_was_written_is_read(hosts: list[tuple[str, int]], query: dict[str, str]) -> None:
    def encoded(text: str) -> str:
        return "".join(f"%{byte:02X}" for byte in text.encode())

    text = "stomp://" + ",".join(f"{host}:{port}" for host, port in hosts)
    text += "?" + "&".join(f"{encoded(key)}={encoded(value)}" for key, value in query.items())
    url = ConnectionUrl.parse(text)
    assert url.hosts == tuple(hosts)
    assert dict(url.query) == query


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stomp://A,b:7", {("a", 61613), ("b", 7)}),
        ("failover:(stomp+ssl://b,stomp+ssl://[::1]:1)?x=y", {("b", 61614), ("::1", 1)}),
        ("vm://tests", {("tests", None)}),
        ("lookup://prod", set()),
    ],
)
def test_endpoints_are_the_same_however_they_are_written(
    text: str, expected: set[tuple[str, int | None]]
) -> None:
    assert ConnectionUrl.parse(text).endpoints == expected
