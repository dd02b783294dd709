"""Destinations as text: J50, J51, J90."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.configuration.administered import DestinationReference
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.errors import ConfigurationError
from tests.unit.core.texts import ANY_TEXT

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", Destination.queue("orders")),
        (" orders ", Destination.queue("orders")),
        ("queue://orders", Destination.queue("orders")),
        ("Queue://orders", Destination.queue("orders")),
        ("queue:orders", Destination.queue("orders")),
        ("/queue/orders", Destination.queue("orders")),
        ("topic://a/b", Destination.topic("a/b")),
        ("/topic/a.b", Destination.topic("a.b")),
        ("jndi://queues/q1234", Destination.queue("jndi://queues/q1234")),
        ("queue://foo://x", Destination.queue("foo://x")),
    ],
)
def test_reads(text: str, expected: Destination) -> None:
    assert Destination.parse(text) == expected


def test_a_header_of_a_foreign_producer_is_never_refused_for_its_type() -> None:
    assert Destination.from_header("temp-queue://reply.7") == Destination.queue("temp-queue://reply.7")
    assert Destination.from_header("topic:prices") == Destination.topic("prices")


@pytest.mark.parametrize("kind", [None, DestinationKind.QUEUE])
def test_an_activation_doesnt_take_an_unknown_type_for_a_name(kind: DestinationKind | None) -> None:
    with pytest.raises(ConfigurationError, match=r"no destination type 'queu' \(did you mean 'queue'\?\)"):
        DestinationReference.parse("queu://orders", kind)


def test_a_bare_name_is_of_the_kind_said_elsewhere() -> None:
    assert Destination.parse("prices", DestinationKind.TOPIC) == Destination.topic("prices")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("foo://x", "no destination type 'foo'; expected queue://name, topic://name or the name of a queue"),
        ("queu://orders", r"no destination type 'queu' \(did you mean 'queue'\?\)"),
        ("queu://orders", r"\(queue://queu://orders if it is really called that\)"),
        ("lookup://x", "no destination type 'lookup'"),
        ("://x", "no destination type ''"),
        ("", "a destination needs a name"),
        ("  ", "a destination needs a name"),
        ("queue://", "a destination needs a name"),
    ],
)
def test_refuses(text: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        Destination.parse(text)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    ANY_TEXT | st.text(alphabet="queto:/ pic").map("queue:{}".format) | st.from_regex(r"[a-z]{0,6}://.{0,9}")
)
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        found = Destination.parse(text)
        assert Destination.parse(str(found)) == found
