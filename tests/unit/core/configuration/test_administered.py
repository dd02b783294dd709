"""Destinations as configurations say them: J50, J51, J85-J91, J212, P10."""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.configuration.administered import (
    AdministeredObject,
    DestinationReference,
)
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.errors import ConfigurationError
from tests.unit.core.texts import ANY_TEXT

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))
QUEUE, TOPIC = DestinationKind.QUEUE, DestinationKind.TOPIC


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("orders", QUEUE, DestinationReference(kind=QUEUE, name="orders")),
        ("orders", TOPIC, DestinationReference(kind=TOPIC, name="orders")),
        ("queue://orders", None, DestinationReference(kind=QUEUE, name="orders")),
        ("topic:prices", TOPIC, DestinationReference(kind=TOPIC, name="prices")),
        ("/queue/orders", None, DestinationReference(kind=QUEUE, name="orders")),
        ("lookup://jms/orders", None, DestinationReference(kind=None, name="jms/orders", lookup=True)),
        ("lookup://jms/orders", QUEUE, DestinationReference(kind=QUEUE, name="jms/orders", lookup=True)),
        ("jndi://queues/q1234", QUEUE, DestinationReference(kind=QUEUE, name="jndi://queues/q1234")),
        (
            "jmsjca://?name=orders&a=b&JMSJCA.prefetch=5",
            QUEUE,
            DestinationReference(kind=QUEUE, name="orders", options=(("a", "b"), ("JMSJCA.prefetch", "5"))),
        ),
        ("jmsjca://?name=topic%3A%2F%2Fprices", None, DestinationReference(kind=TOPIC, name="prices")),
        (
            "jmsjca://?name=lookup%3A%2F%2Fx&a=b",
            None,
            DestinationReference(kind=None, name="x", lookup=True, options=(("a", "b"),)),
        ),
    ],
)
def test_reads_j50_j87_j91(text: str, kind: DestinationKind | None, expected: DestinationReference) -> None:
    assert DestinationReference.parse(text, kind) == expected


@pytest.mark.parametrize(
    ("text", "kind", "fault"),
    [
        ("orders", None, "destination_type: missing, expected queue or topic"),
        ("topic://t", QUEUE, "'topic://t' is a topic but destination_type is queue"),
        ("lookup://", None, "lookup:// without a name"),
        ("jmsjca://name=orders", QUEUE, "needs a question mark"),
        ("jmsjca://?a=b", QUEUE, "name is missing"),
        ("jmsjca://?name=q&JMSJCA.foo=1", QUEUE, "unknown option JMSJCA.foo"),
        ("jmsjca://?name=q&JMSJCA.NoXA=true", QUEUE, "JMSJCA.NoXA is not an option of a destination"),
        ("jmsjca://?name=q&prefetch=0", QUEUE, "prefetch: got '0'"),
        ("queue://", None, "needs a name"),
        ("", QUEUE, "needs a name"),
    ],
)
def test_refuses_j51(text: str, kind: DestinationKind | None, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DestinationReference.parse(text, kind)
    assert fault in str(caught.value)


@pytest.mark.parametrize("value", [None, 5, ["queue://orders"]])
def test_what_is_no_text_is_refused_by_name(value: Any) -> None:
    fault = f"destination is {value!r}, of type {type(value).__name__}; expected a string such as queue://"
    with pytest.raises(ConfigurationError, match=re.escape(fault)):
        DestinationReference.parse(value)


def test_examples_of_the_document_j90() -> None:
    objects = {
        "orders": AdministeredObject.parse({"type": "javax.jms.Queue", "name": "jndi://queues/q1234"}),
        "jms/destinations/orders": AdministeredObject.parse("queue://q1234"),
    }
    first = DestinationReference.parse("lookup://orders").resolve(objects)
    second = DestinationReference.parse("lookup://jms/destinations/orders", QUEUE).resolve(objects)
    assert first == Destination.queue("jndi://queues/q1234")
    assert second == Destination.queue("q1234")


def test_options_of_the_name_beat_those_of_the_object_j91() -> None:
    objects = {"x": AdministeredObject.parse({"type": "queue", "name": "q", "options": "a=1\nb=1"})}
    reference = DestinationReference.parse("jmsjca://?name=lookup://x&b=2&c=2")
    found = reference.resolve(objects)
    assert found == Destination.queue("q")
    assert dict(found.options) == {"a": "1", "b": "2", "c": "2"}


def test_genericjmsra_objects_j212() -> None:
    found = AdministeredObject.parse({"DestinationJndiName": "jms/q", "type": "javax.jms.Topic"})
    assert found.destination == Destination.topic("jndi://jms/q")


@pytest.mark.parametrize(
    ("given_object", "fault"),
    [
        ({"type": "queue"}, "name is missing"),
        ({"type": "pile", "name": "q"}, "expected one of queue, topic"),
        ({"name": "q"}, "destination_type: missing"),
        ({"name": "queue://q", "nmae": "x"}, "unknown key 'nmae'"),
        ({"name": "queue://q", "options": "=x"}, "a value without a key"),
        ("lookup://x", "expected a destination at the broker"),
    ],
)
def test_refuses_objects(given_object: str | dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        AdministeredObject.parse(given_object)
    assert fault in str(caught.value)


def test_look_ups_that_fail_say_what_to_define_j88() -> None:
    reference = DestinationReference.parse("lookup://x", TOPIC)
    with pytest.raises(ConfigurationError, match=r"entry destination\.x in \[jmsjca\]"):
        reference.resolve({})
    with pytest.raises(ConfigurationError, match="is a queue but destination_type is topic"):
        reference.resolve({"x": AdministeredObject.parse("queue://q")})


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    ANY_TEXT | st.text(alphabet="name=&?a%").map("jmsjca://?{}".format),
    st.sampled_from([QUEUE, TOPIC, None]),
)
def test_any_text_is_read_or_refused(text: str, kind: DestinationKind | None) -> None:
    with contextlib.suppress(ConfigurationError):
        assert DestinationReference.parse(text, kind).name


def test_a_name_in_the_providers_own_jndi_stays_as_it_is_j86() -> None:
    """What `jndi://` names is the provider's to find: it is no name of ours to look up."""
    reference = DestinationReference.parse("jndi://queues/q1234", QUEUE)
    assert not reference.lookup
    assert reference.resolve({}) == Destination.queue("jndi://queues/q1234")


_VALUES = (
    st.text(max_size=6)
    | st.sampled_from(["queue", "topic", "javax.jms.Queue", "queue://q", "lookup://x", "a=b", "prefetch=0"])
    | st.integers()
    | st.none()
    | st.lists(st.text(max_size=2), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.integers(), max_size=2)
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["type", "name", "options", "Options", "DestinationJndiName", "Name", "Type", "x"])
        | st.text(max_size=4),
        _VALUES,
        max_size=4,
    ),
    st.text(max_size=20),
)
def test_any_object_is_read_or_refused_j85_j91_j212(fields: dict[str, object], text: str) -> None:
    """As a mapping, as JSON, and as text, which may be broken JSON."""
    for form in (fields, json.dumps(fields), json.dumps(fields)[:-1] + text, text, "{" + text):
        with contextlib.suppress(ConfigurationError):
            assert AdministeredObject.parse(form).destination.name
