"""Options of one destination: J91."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.configuration.administered import AdministeredObject, DestinationReference
from airflow_provider_jmsjca.core.configuration.destination_options import (
    broker_options,
    check_options,
    prefetch_of,
    reference_text,
)
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.errors import ConfigurationError

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))


@pytest.mark.parametrize("key", ["prefetch", "JMSJCA.prefetch", "jmsjca.PREFETCH"])
def test_ours_and_the_brokers_are_told_apart_j91(key: str) -> None:
    found = DestinationReference.parse(f"jmsjca://?name=queue://orders&{key}=7&x-queue-type=quorum").resolve(
        {}
    )
    assert found == Destination.queue("orders")
    assert prefetch_of(found) == 7
    assert broker_options(found) == {"x-queue-type": "quorum"}


def test_a_destination_without_options_says_nothing() -> None:
    assert prefetch_of(Destination.queue("q")) is None
    assert broker_options(Destination.queue("q")) == {}
    assert reference_text(Destination.queue("q")) == "queue://q"


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        (
            {"JMSJCA.redeliveryhandling": "5:1000", "JMSJCA.foo": "1", "prefetch": "many"},
            [
                "orders: unknown option JMSJCA.foo",
                "orders: JMSJCA.redeliveryhandling is not an option of a destination, expected it in the",
                "orders: prefetch: got 'many', expected a whole number",
            ],
        ),
        ({"reply_timeout": "3"}, ["orders: reply_timeout is not an option of a destination"]),
    ],
)
def test_what_cannot_act_is_refused_all_at_once_j91(options: dict[str, str], faults: list[str]) -> None:
    found = check_options(options, "orders")
    assert len(found) == len(faults)
    assert all(text.startswith(fault) for text, fault in zip(found, faults, strict=True)), found


def test_an_objects_options_are_checked_where_it_is_defined_j91() -> None:
    with pytest.raises(ConfigurationError) as caught:
        AdministeredObject.parse({"type": "queue", "name": "q", "options": "JMSJCA.ACC=true\nprefetch=0"})
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["administered object"] * 2
    assert "JMSJCA.ACC is not an option of a destination" in caught.value.faults[0]
    assert "prefetch: got '0'" in caught.value.faults[1]


def test_a_spec_passes_them_on_and_names_beat_objects_j91() -> None:
    spec = ActivationSpec(destination="jmsjca://?name=lookup://orders&prefetch=3")
    objects = {
        "orders": AdministeredObject.parse(
            {"type": "queue", "name": "q", "options": "prefetch=9\nactivemq.exclusive=true"}
        )
    }
    (found,) = spec.destinations_from(objects)
    assert found == Destination.queue("q")
    assert prefetch_of(found) == 3
    assert broker_options(found) == {"activemq.exclusive": "true"}


def test_values_are_not_shown() -> None:
    found = DestinationReference.parse("jmsjca://?name=queue://q&x-note=hunter2").resolve({})
    assert "hunter2" not in repr(found)
    assert "hunter2" not in str(found)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    kind=st.sampled_from(list(DestinationKind)),
    name=st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"])),
    options=st.dictionaries(
        st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"])).map("x-{}".format),
        st.text(alphabet=st.characters(exclude_categories=["Cs"])),
        max_size=4,
    ),
)
def test_any_destination_reads_back_j91(kind: DestinationKind, name: str, options: dict[str, str]) -> None:
    destination = Destination(kind, name, tuple(options.items()))
    text = reference_text(destination)
    with contextlib.suppress(ConfigurationError):
        found = DestinationReference.parse(text).resolve({})
        assert found.options == destination.options
        assert found.kind is kind
