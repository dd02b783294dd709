"""The message wrapper and its extra properties (J169-J177, J185, J186, J191)."""

from __future__ import annotations

import copy
from types import MappingProxyType
from typing import Any

import pytest

from airflow_provider_jmsjca.core.delivery.decisions import Deliver, DeliverEndOfBatch
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import BodyKind, ItemType, JmsMessage
from airflow_provider_jmsjca.core.redelivery import MessageState
from airflow_provider_jmsjca.engine.delivering import delivery
from airflow_provider_jmsjca.engine.delivering.delivery import (
    Delivery,
    HandlerEngine,
    extra_property,
)
from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError

ENGINE = HandlerEngine(
    destination=Destination.queue("orders"),
    transacted=True,
    principal=None,
    send=lambda *_: None,
    acknowledge=None,
)


def told(
    message: JmsMessage,
    *,
    seen: int = 0,
    batch_index: int = 0,
    batch_size: int | None = None,
    state: MessageState | None = None,
    handling: str = "",
) -> Delivery:
    """Return a delivery that has been told what the machine decided."""
    found = Delivery(message, ENGINE, None, 1, 1, handling)
    decision = Deliver(
        call=1,
        unit=1,
        delivery=1,
        seen=seen,
        batch_index=batch_index,
        in_doubt=False,
        state=state or MessageState(seen=seen),
    )
    found.tell(decision, Destination.queue("origin"), batch_size)
    return found


def test_it_reads_like_the_message_inside() -> None:
    """J175."""
    inside = JmsMessage.map({"a": 1}, {"n": 5}, type="order", correlation_id="c", priority=7)
    message = told(inside)
    assert (message.body_kind, message.body, message.properties) == (BodyKind.MAP, {"a": 1}, {"n": 5})
    assert (message.type, message.correlation_id, message.priority) == ("order", "c", 7)
    assert (message.get_long("n"), message.get_string("n"), message.get_object("n")) == (5, "5", 5)
    assert message.get_item("a", ItemType.STRING) == "1"
    assert message.message is inside
    with pytest.raises(AttributeError, match="colour"):
        _ = message.colour
    with pytest.raises(PoisonMessageError):
        message.get_boolean("n")


@pytest.mark.parametrize("prefix", ["JMS_Sun_JMSJCA_", "_JMSJCA_"])
def test_redelivery_properties_under_both_prefixes(prefix: str) -> None:
    """J166, J169, J170, J171, J172, J173."""
    state = MessageState(
        seen=3,
        rollback_data=MappingProxyType({"mode": "permanent"}),
        failure=Failure(class_names=("builtins.ValueError",), message="boom"),
    )
    message = told(JmsMessage.empty(), seen=3, state=state, handling="3:25")
    assert message.get_object(f"{prefix}RedeliveryCount") == 3
    assert message.get_string(f"{prefix}RedeliveryHandling") == "3:25"
    assert message.get_object(f"{prefix}RedeliveryHandling") == "3:25"
    assert message.get_string(f"{prefix}UserRollbackData.mode") == "permanent"
    assert message.get_string(f"{prefix}UserRollbackDatamode") == "permanent"
    assert message.get_string(f"{prefix}ExceptionClass") == "ValueError"
    assert message.get_string(f"{prefix}ExceptionMessage") == "boom"
    assert message.get_object(f"{prefix}StopMessageDelivery") is None
    message.set_property(f"{prefix}StopMessageDelivery", "database is down")
    assert message.stop_reason == "database is down"
    message.set_property(f"{prefix}UserRollbackData.key", "v")
    assert message.user_rollback_data == {"mode": "permanent", "key": "v"}
    message.set_property(f"{prefix}RedeliveryHandling", "5:delete")
    assert message.redelivery_handling == "5:delete"


def test_batch_properties() -> None:
    """J176, J186, J191."""
    message = told(JmsMessage.empty(), batch_index=2, batch_size=10)
    assert message.get_object("JMSJCA.batchIndex") == 2
    assert message.get_object("JMSJCA.batchSize") == 10
    assert message.get_object("JMSJCA.EndOfBatch") is None
    assert told(JmsMessage.empty(), batch_index=2).get_object("JMSJCA.batchIndex") is None


@pytest.mark.parametrize("rollback", [False, True])
def test_end_of_batch(rollback: bool) -> None:
    """J185, J186."""
    message = Delivery(JmsMessage.empty(), ENGINE, None, 2, 1)
    message.tell_end_of_batch(DeliverEndOfBatch(call=2, unit=1, batch_index=3, rollback=rollback), 10)
    assert message.get_object("JMSJCA.EndOfBatch") is True
    assert message.get_object("JMSJCA.batchIndex") == 3
    assert message.get_object("JMSJCA.batchSize") == 10
    assert message.rollback_only is rollback
    assert message.received_from == Destination.queue("orders")


@pytest.mark.parametrize("name", ["JMSJCA.setRollbackOnly", "JMSJCA.setRollBackOnly"])
def test_rollback_only(name: str) -> None:
    """J176: the source spells it in two ways."""
    message = told(JmsMessage.empty())
    assert message.get_object(name) is False
    message.set_property(name, value=True)
    assert message.rollback_only is True
    message.set_property(name, value=False)
    message.set_rollback_only()
    assert message.get_object(name) is True


def test_acknowledge_calls_the_hook_with_the_message() -> None:
    """J176."""
    calls: list[Delivery] = []
    engine = HandlerEngine(
        destination=ENGINE.destination,
        transacted=True,
        principal=None,
        send=ENGINE.send,
        acknowledge=calls.append,
    )
    message = Delivery(JmsMessage.empty(), engine, None, 1, 1)
    message.acknowledge()
    assert calls == [message]
    told(JmsMessage.empty()).acknowledge()


def test_extra_properties_are_no_properties() -> None:
    """J177: not among the names, not converted."""
    message = told(JmsMessage.empty({"n": 1}), seen=1, batch_size=10)
    message.set_property("_JMSJCA_UserRollbackData.k", "5")
    assert set(message.properties) == {"n"}
    for read, name in (
        (message.get_boolean, delivery.SET_ROLLBACK_ONLY),
        (message.get_int, delivery.REDELIVERY_COUNT),
        (message.get_string, delivery.REDELIVERY_COUNT),
        (message.get_int, "_JMSJCA_UserRollbackData.k"),
        (message.get_long, delivery.BATCH_INDEX),
    ):
        with pytest.raises(ConfigurationError, match="read it with get_object"):
            read(name)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("region", "eu", "a received message is read-only"),
        ("JMSJCA.batchIndex", 1, "read-only"),
        ("JMSJCA.EndOfBatch", True, "read-only"),
        ("_JMSJCA_RedeliveryCount", 0, "read-only"),
        ("_JMSJCA_ExceptionClass", "x", "read-only"),
        ("_JMSJCA_UserRollbackData", "x", "read-only"),
        ("_JMSJCA_Unknown", "x", "read-only"),
        ("JMSJCA.setRollbackOnly", "true", "expected a boolean, not str"),
        ("_JMSJCA_StopMessageDelivery", None, "expected a string, not NoneType"),
        ("_JMSJCA_UserRollbackData.k", 5, "expected a string, not int"),
    ],
)
def test_what_can_not_be_written(name: str, value: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        told(JmsMessage.empty()).set_property(name, value)


def test_a_redelivery_handling_that_is_none_is_refused_at_once() -> None:
    """J171."""

    message = told(JmsMessage.empty(), handling="3:25")
    with pytest.raises(ConfigurationError, match="redelivery handling, character 1: 'x'"):
        message.set_property("_JMSJCA_RedeliveryHandling", "x")
    assert message.redelivery_handling == "3:25"


def test_what_a_moved_message_carries_can_be_read() -> None:
    """J154, J162, J165: the properties of the copy, where this delivery has nothing of its own."""
    message = told(
        JmsMessage.empty({"JMS_Sun_JMSJCA_ExceptionClass": "OSError", "JMS_Sun_JMSJCA_UserRollbackData": "x"})
    )
    assert message.get_string("JMS_Sun_JMSJCA_ExceptionClass") == "OSError"
    assert message.get_string("JMS_Sun_JMSJCA_UserRollbackData") == "x"


def test_it_can_be_copied() -> None:
    message = copy.copy(told(JmsMessage.text("x"), seen=2))
    assert (message.body, message.redelivery_count, message.received_from) == (
        "x",
        2,
        Destination.queue("origin"),
    )


def test_user_rollback_data_is_copied() -> None:
    given = {"a": "1"}
    message = told(JmsMessage.empty(), state=MessageState(rollback_data=MappingProxyType(given)))
    message.user_rollback_data["b"] = "2"
    assert given == {"a": "1"}


def test_other_names_are_no_extra_properties() -> None:
    for name in ("region", "JMSJCA.unknown", "_JMSJCA_", "JMS_Sun_JMSJCA_Foo", "_JMSJCA_UserRollbackData."):
        assert extra_property(name) is None
