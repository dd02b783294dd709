"""Destinations as text: J50, J51."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.administered import DestinationReference
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.errors import ConfigurationError

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", Destination.queue("orders")),
        ("queue://orders", Destination.queue("orders")),
        ("queue:orders", Destination.queue("orders")),
        ("/queue/orders", Destination.queue("orders")),
        ("topic://prices.eu", Destination.topic("prices.eu")),
        ("topic:prices.eu", Destination.topic("prices.eu")),
        ("/topic/prices.eu", Destination.topic("prices.eu")),
        ("orders?eu", Destination.queue("orders?eu")),
        ("urn:orders", Destination.queue("urn:orders")),
        ("a/b", Destination.queue("a/b")),
        ("queue://other://orders", Destination.queue("other://orders")),
    ],
)
def test_what_is_read(text: str, expected: Destination) -> None:
    assert Destination.parse(text) == expected
    assert Destination.parse(str(expected)) == expected
    assert Destination.from_header(text) == expected


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "a destination needs a name, for example queue://orders"),
        ("queue://", "a destination needs a name, for example queue://orders"),
        (
            "queu://orders",
            (
                "destination 'queu://orders': no destination type 'queu' (did you mean 'queue'?); expected "
                "queue://name, topic://name or the name of a queue (queue://queu://orders if it is really "
                "called that)"
            ),
        ),
        ("Topic://prices", "no destination type 'Topic' (did you mean 'topic'?)"),
        ("amqp+x://orders", "no destination type 'amqp+x'; expected queue://name"),
    ],
)
def test_what_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Destination.parse(text)
    (sentence,) = caught.value.faults
    assert fault in sentence


def test_a_header_of_a_foreign_producer_is_never_refused_for_its_type() -> None:
    assert Destination.from_header("temp-queue://reply.7") == Destination.queue("temp-queue://reply.7")


@pytest.mark.parametrize("kind", [None, DestinationKind.QUEUE])
def test_an_activation_doesnt_take_an_unknown_type_for_a_name(kind: DestinationKind | None) -> None:
    with pytest.raises(ConfigurationError, match=r"no destination type 'queu' \(did you mean 'queue'\?\)"):
        DestinationReference.parse("queu://orders", kind)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.text() | st.text(alphabet="queto:/ pic").map("queue:{}".format) | st.from_regex(r"[a-z]{0,6}://.{0,9}")
)
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        found = Destination.parse(text)
        assert Destination.parse(str(found)).name == found.name.rstrip()
