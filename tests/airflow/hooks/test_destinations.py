"""Administered objects in activation specs: J50, J87-J91, J140."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from airflow.sdk.configuration import conf

from airflow_provider_jmsjca import ActivationSpec, ConfigurationError, Destination, JmsHook, JmsMessage, Move
from tests.airflow.conftest import Publish
from tests.internals.core import SINGLE_DESTINATIONS, prefetch_of
from tests.internals.hooks import find_destination, with_lookups


@pytest.fixture(autouse=True)
def objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects in a folder, as Airflow variables."""
    monkeypatch.setenv("AIRFLOW_VAR_JMS/IN", '{"type": "queue", "name": "q1234", "options": "prefetch=7"}')
    monkeypatch.setenv("AIRFLOW_VAR_JMS/PRICES", "topic://prices")
    monkeypatch.setenv("AIRFLOW_VAR_JMS/DLQ_IN", "queue://dead.orders")
    monkeypatch.setenv("AIRFLOW_VAR_DEAD", "queue://dead")


def test_the_destination_and_its_options_are_looked_up_j50_j91() -> None:
    """J20, W28."""
    spec = with_lookups(ActivationSpec(destination="lookup://jms/in"))
    (found,) = spec.destinations
    assert found == Destination.queue("q1234")
    assert prefetch_of(found) == 7
    assert spec.title == "queue://q1234"


@pytest.fixture
def configured() -> Iterator[Callable[[str], None]]:
    """Write lines into `[jmsjca]` as `airflow.cfg` has them."""
    yield lambda lines: conf.read_string(f"[jmsjca]\n{lines}")
    conf.remove_section("jmsjca")


def test_jndi_names_of_the_file_may_have_capitals_j87(configured: Callable[[str], None]) -> None:
    configured("destination.jms/shop/OrderQueue = queue://orders")
    assert find_destination("lookup://jms/shop/OrderQueue") == Destination.queue("orders")
    assert find_destination("lookup://jms/shop/orderqueue") == Destination.queue("orders")


def test_an_entry_is_a_queue_or_a_topic_j85(configured: Callable[[str], None]) -> None:
    configured("destination.orders = queue://q\ndestination.t = topic://t\ndestination.bare = q\n")
    assert find_destination("lookup://orders") == Destination.queue("q")
    assert find_destination("lookup://t") == Destination.topic("t")
    with pytest.raises(ConfigurationError, match="destination_type: missing"):
        find_destination("lookup://bare")


def test_entries_that_differ_by_their_case_alone_are_told_apart(configured: Callable[[str], None]) -> None:
    configured("destination.In = queue://a\ndestination.iN = queue://b\n")
    assert find_destination("lookup://In") == Destination.queue("a")
    assert find_destination("lookup://iN") == Destination.queue("b")
    with pytest.raises(ConfigurationError, match=r"lookup://IN: \[jmsjca\] defines In and iN, which differ"):
        find_destination("lookup://IN")


def test_several_destinations_are_looked_up_each() -> None:
    spec = with_lookups(ActivationSpec(destination=["lookup://jms/in", "queue://other"], name="both"))
    assert spec.destinations == (Destination.queue("q1234"), Destination.queue("other"))
    assert spec.title == "both"


def test_a_type_that_differs_from_the_objects_is_refused_j51() -> None:
    with pytest.raises(ConfigurationError, match="the object is a topic but destination_type is queue"):
        with_lookups(ActivationSpec(destination="lookup://jms/prices", destination_type="queue"))


def test_the_target_of_a_move_is_looked_up_in_the_folder_of_the_destination_j140() -> None:
    spec = ActivationSpec(destination="lookup://jms/in", redelivery_handling="3:25; 5:move(queue:dlq_$)")
    assert str(with_lookups(spec).redelivery) == "3:25; 5:move(queue:dead.orders)"


def test_a_target_may_be_looked_up_while_the_destination_is_not_j140() -> None:
    spec = ActivationSpec(destination="queue://in", redelivery_handling="5:move(queue:lookup://dead)")
    assert str(with_lookups(spec).redelivery) == "5:move(queue:dead)"


def test_a_target_that_is_not_there_is_refused_at_the_start_j140() -> None:
    spec = ActivationSpec(destination="queue://in", redelivery_handling="5:move(queue:lookup://nowhere)")
    with pytest.raises(ConfigurationError, match="lookup://nowhere: there is no such administered object"):
        with_lookups(spec)


def test_one_target_for_each_of_several_is_refused_j140() -> None:
    spec = ActivationSpec(
        destination=["lookup://jms/in", "queue://other"], redelivery_handling="5:move(queue:dlq_$)"
    )
    with pytest.raises(ConfigurationError, match="expected a target without \\$, or an activation for each"):
        with_lookups(spec)


@pytest.mark.parametrize("name", SINGLE_DESTINATIONS)
def test_where_messages_go_afterwards_is_looked_up_too_j87_j91(name: str) -> None:
    spec = ActivationSpec.model_validate({"destination": "queue://in", name: "lookup://jms/in"})
    assert getattr(with_lookups(spec), name) == "jmsjca://?name=queue://q1234&prefetch=7"


def test_dead_letter_destinations_are_looked_up_j87_j91() -> None:
    dead = ["lookup://dead", "jmsjca://?name=lookup://jms/in&prefetch=3", "other"]
    spec = with_lookups(
        ActivationSpec(destination="queue://in", max_attempts=4, dead_letter_destination=dead)
    )
    expected = (Destination.queue("dead"), Destination.queue("q1234"), Destination.queue("other"))
    assert spec.dead_letter_destinations == expected
    (move,) = spec.redelivery.actions
    assert isinstance(move, Move)
    found = move.targets(Destination.queue("in"))
    assert found == expected
    assert [prefetch_of(each) for each in found] == [None, 3, None]


def test_the_target_of_java_clients_properties_is_looked_up_with_its_options_c14_j91() -> None:
    spec = ActivationSpec(
        destination="queue://in",
        redelivery_action="move",
        redelivery_action_after=3,
        redelivery_move_kind="queue",
        redelivery_move_name="lookup://jms/in",
    )
    expected = "3:move(queue:jmsjca://?name=queue://q1234&prefetch=7)"
    assert str(with_lookups(spec).redelivery) == expected


def test_without_look_ups_the_spec_stays_as_it_is() -> None:
    spec = ActivationSpec(destination="queue://in", redelivery_handling="5:move(queue:dlq_$)")
    assert with_lookups(spec) is spec


@pytest.mark.usefixtures("server")
def test_the_hook_looks_up_for_an_activation_j50() -> None:
    spec, _ = JmsHook("jms_test").activation(ActivationSpec(destination="lookup://jms/in"))
    assert spec.destinations == (Destination.queue("q1234"),)


def test_a_second_use_asks_nobody_j89(publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_PLACED", "queue://orders")
    publish("one")
    with JmsHook("jms_test").get_conn() as connection, connection.session() as session:
        assert session.receive("lookup://placed", timeout=5) is not None
        monkeypatch.delenv("AIRFLOW_VAR_PLACED")
        session.send("lookup://placed", JmsMessage.text("two"))
        found = session.receive("lookup://placed", timeout=5)
    assert found is not None
    assert found.body == "two"
