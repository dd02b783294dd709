from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.destination_uri import DestinationUri
from airflow_provider_jmsjca.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "authority", "destination", "virtual_host"),
    [
        ("jms://jms_default/queue/orders", "jms_default", Destination.queue("orders"), None),
        ("jms://Broker:61614/topic/a/b", "Broker:61614", Destination.topic("a/b"), None),
        (" JMS://b/Queue/a%20b%3F%23 ", "b", Destination.queue("a b?#"), None),
        ("jms://b/queue/é", "b", Destination.queue("é"), None),
        ("jms://b/queue/q?virtual_host=%2Fprod", "b", Destination.queue("q"), "/prod"),
        ("jms://b/queue/q?virtual_host=", "b", Destination.queue("q"), None),
    ],
)
def test_it_is_read(text: str, authority: str, destination: Destination, virtual_host: str | None) -> None:
    assert DestinationUri.parse(text) == DestinationUri(
        authority=authority, destination=destination, virtual_host=virtual_host
    )


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("jms://Broker.Example.com:61613/Queue/Orders", "jms://broker.example.com/queue/Orders"),
        ("jms://b:61614/topic/p", "jms://b:61614/topic/p"),
        ("jms://b:/topic/p", "jms://b/topic/p"),
        ("jms://[::1]:61613/queue/p", "jms://[::1]/queue/p"),
        ("jms://b/queue/%6Frders", "jms://b/queue/orders"),
        ("jms://b/queue/a b", "jms://b/queue/a%20b"),
        ("jms://b/queue/a%2F", "jms://b/queue/a%2F"),
        ("jms://b/queue/a%2Fb", "jms://b/queue/a/b"),
        ("jms://b/queue/q?virtual_host=/", "jms://b/queue/q"),
        ("jms://b/queue/q?virtual_host=prod", "jms://b/queue/q?virtual_host=prod"),
    ],
)
def test_all_ways_to_write_it_have_one_form(text: str, form: str) -> None:
    found = DestinationUri.parse(text).normalized()
    assert str(found) == form
    assert f"{found.broker}/{found.name}" == form
    assert DestinationUri.parse(form).normalized() == found


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("stomp://b/queue/q", "the scheme is 'stomp'"),
        ("jms:///queue/q", "the name after jms:// is missing"),
        ("jms://b", "'' is neither 'queue' nor 'topic'"),
        ("jms://b/quue/q", "'quue' is neither 'queue' nor 'topic'"),
        ("jms://b/queue", "the queue has no name"),
        ("jms://b/topic/", "the topic has no name"),
        ("jms://b/queue/q?prefetch=1", "the query has 'prefetch', expected 'virtual_host' only"),
        ("jms://b/queue/q#part", "'#part' is not allowed; write # in a name as %23"),
        ("jms://[b/queue/q", "can't be read"),
    ],
)
def test_what_is_wrong_is_named(text: str, what: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DestinationUri.parse(text)
    assert what in str(caught.value)
    assert "expected jms://NAME/queue/DESTINATION" in str(caught.value)


def test_secrets_are_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="user and password belong in") as caught:
        DestinationUri.parse("jms://joe:hush@b/quue/q")
    assert "hush" not in str(caught.value)
    assert "joe" not in str(caught.value)


@pytest.mark.parametrize("authority", ["b:0", "b:65536", "b:61613:1", "b:x"])
def test_an_address_that_is_none_is_refused(authority: str) -> None:
    uri = DestinationUri.parse(f"jms://{authority}/queue/q")
    with pytest.raises(ConfigurationError, match="is not the address of a broker"):
        uri.normalized()


@given(kind=st.sampled_from(list(DestinationKind)), name=st.text(min_size=1))
def test_any_name_survives(kind: DestinationKind, name: str) -> None:
    if any(0xD800 <= ord(each) <= 0xDFFF for each in name):
        return  # no name of any broker
    uri = DestinationUri(authority="b", destination=Destination(kind, name))
    assert str(uri).isascii()
    assert DestinationUri.parse(str(uri)) == uri
    assert DestinationUri.parse(str(uri).rstrip("/")) == uri
