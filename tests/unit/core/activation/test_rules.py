"""Rules between fields: J50-J53, J64, J184, J193, J204-J211, W25, P6, P9, C14, I9, I16."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.options import OPTIONS
from airflow_provider_jmsjca.errors import ConfigurationError

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "200"))
QUEUE = {"destination": "queue://q"}
TOPIC = {"destination": "topic://t"}
DISTRIBUTED = "jmsjca://?distribution=1&subscribername=s"
DURABLE = {**TOPIC, "subscription_durability": "durable"}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        # J50, J51
        ({}, "destination: missing, expected the name of the queue or topic to consume"),
        (
            {"destination": "q"},
            "destination_type: missing, expected queue or topic (or the destination as queue://q)",
        ),
        (
            {**QUEUE, "destination_type": "topic"},
            "destination: 'queue://q' is a queue but destination_type is topic",
        ),
        # J52, J53
        (DURABLE, "subscription_name: missing, expected a name because subscription_durability is durable"),
        (
            {**QUEUE, "subscription_durability": "durable", "subscription_name": "s"},
            "subscription_durability: got durable for a queue, expected a topic (queues keep their messages)",
        ),
        (
            {**DURABLE, "subscription_name": "s", "destination": ["topic://a", "topic://b"]},
            "destination: got 2 topics for one durable subscription, expected one",
        ),
        # J206, J207
        (
            {**TOPIC, "subscription_name": "jmsjca://?distribution=1&subscribername=s"},
            "subscription_durability: got non_durable, expected durable for a distributed subscription_name",
        ),
        (
            {**DURABLE, "subscription_name": DISTRIBUTED, "generate_unique_client_id": True},
            (
                "generate_unique_client_id: got true, expected false for a distributed subscription_name: "
                "the instances share one subscription"
            ),
        ),
        (
            {**DURABLE, "subscription_name": DISTRIBUTED, "durable_subscription_deletion": True},
            (
                "durable_subscription_deletion: got true, expected false for a distributed "
                "subscription_name: other instances may stand by for the subscription"
            ),
        ),
        (
            {**DURABLE, "subscription_name": "jmsjca://?distribution=1"},
            "subscription_name: subscribername is missing, expected the name of the durable subscription",
        ),
        # J184, J193
        ({**QUEUE, "BatchSize": 2}, "concurrency_mode: got serial, expected sync or cc for batches of 2"),
        (
            {**QUEUE, "HoldUntilAck": "1"},
            "concurrency_mode: got serial, expected sync or cc for hold_until_ack",
        ),
        # J55, J63
        (
            {**QUEUE, "endpointPoolMaxSize": 0},
            "endpointPoolMaxSize: got 0, expected a whole number, 1 or more",
        ),
        (
            {**QUEUE, "endpointPoolMaxSize": 2, "endpointPoolSteadySize": 3},
            "endpoint_pool_steady_size: got 3, expected at most endpoint_pool_max_size, 2",
        ),
        # J64
        (
            {**QUEUE, "redelivery_handling": "1:1", "max_attempts": 3, "dead_letter_destination": "d"},
            (
                "redelivery_handling: set in 2 ways (redelivery_handling; max_attempts, redelivery_delay), "
                "expected one of them"
            ),
        ),
        (
            {**QUEUE, "dead_letter_destination": ["discard", "d"]},
            "dead_letter_destination: got discard beside destinations",
        ),
        (
            {**QUEUE, "message_id_fallback": "body"},
            "message_id_fallback: got 'body', expected digest, or property:name with the name of a message",
        ),
        ({**QUEUE, "message_id_fallback": "property: "}, "message_id_fallback: got 'property:', expected"),
        ({**QUEUE, "message_id_fallback": "digest:body"}, "message_id_fallback: got 'digest:body', expected"),
        # P6
        (
            {**QUEUE, "max_attempts": 3},
            (
                "dead_letter_destination: missing, expected a destination for messages after max_attempts, "
                "or the word discard to drop them, or use_store to keep them in limbo"
            ),
        ),
        (
            {**QUEUE, "non_retryable": "ValueError"},
            (
                "dead_letter_destination: missing, expected a destination for messages that fail with "
                "non_retryable exceptions (or a move at the end of redelivery_handling, or use_store, which "
                "keeps them)"
            ),
        ),
        # W25
        (
            {**QUEUE, "init-suspend-seconds": 60, "max-suspend-seconds": 30},
            "init_suspend: got 60 s, expected at most max_suspend, 30 s",
        ),
        # I9, I15, I16
        (
            {**TOPIC, "in_progress_destination": "p"},
            "in_progress_destination: got a topic, expected queues only",
        ),
        (
            {**QUEUE, "container_managed_events": "jms"},
            "source_queue: missing, expected a queue because container_managed_events is jms",
        ),
        (
            {**QUEUE, "container_managed_events": "jms", "source_queue": "s", "poll_quantity": 501},
            "poll_quantity: got 501, expected 1 to 500 because container_managed_events is jms",
        ),
        (
            {**QUEUE, "container_managed_events": "jms", "source_queue": "topic://s"},
            "source_queue: got 'topic://s', expected a queue",
        ),
        ({**QUEUE, "error_destination": "queue://"}, "a destination needs a name"),
        (
            {**QUEUE, "archive_destination": "jmsjca://?name=done&JMSJCA.concurrencymode=cc"},
            "JMSJCA.concurrencymode is not an option of a destination",
        ),
        (
            {**QUEUE, "redelivery_handling": "3:move(queue:jmsjca://?name=dead&JMSJCA.concurrencymode=cc)"},
            "redelivery_handling: JMSJCA.concurrencymode is not an option of a destination",
        ),
        # spelling
        ({**QUEUE, "bach_size": 2}, "bach_size: unknown option (did you mean batch_size?)"),
        (
            {**QUEUE, "BatchSize": 1, "batch_size": 2},
            "batch_size: differs from BatchSize, the same option; expected one of them",
        ),
        ({**QUEUE, "JMSJCA.ACC": True}, "not an option of the activation level"),
        ({**QUEUE, "pool_max_size": 3}, "not an option of the activation level"),
    ],
)
def test_refuses(fields: dict[str, object], fault: str) -> None:
    """J184, J193."""
    with pytest.raises(ConfigurationError) as caught:
        ActivationSpec(**fields)
    assert any(fault in found for found in caught.value.faults), caught.value.faults


@pytest.mark.parametrize("handling", ["5:x", "5:1;3:1", "50:move(dlq)", "0:1", "5:delete; 6:1"])
def test_redelivery_handling_is_checked_j64(handling: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^redelivery_handling: "):
        ActivationSpec(**QUEUE, RedeliveryHandling=handling)


def test_empty_redelivery_handling_is_no_handling_j138() -> None:
    assert ActivationSpec(**QUEUE, RedeliveryHandling="").redelivery.actions == ()


def test_selectors_are_checked() -> None:
    with pytest.raises(ConfigurationError, match=r"message_selector: .*position 4"):
        ActivationSpec(**QUEUE, selector="a =")


def test_all_faults_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ActivationSpec(
            destination="q",
            batch_size="x",
            HoldUntilAck="1",
            bogus=1,
            selector="a =",
            max_suspend=-1,
            RedeliveryHandling="x",
        )
    fields = [fault.partition(":")[0] for fault in caught.value.faults]
    assert fields == [
        "batch_size",
        "bogus",
        "max_suspend",
        "destination_type",
        "concurrency_mode",
        "message_selector",
        "redelivery_handling",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {**QUEUE, "BatchSize": 2, "ConcurrencyMode": "sync", "HoldUntilAck": "1"},
        {**QUEUE, "BatchSize": 2, "ConcurrencyMode": "cc"},
        {**QUEUE, "BatchSize": 0},
        {**TOPIC, "subscription_name": "s"},
        {"destination": "lookup://x", "subscription_durability": "durable", "subscription_name": "s"},
        {**QUEUE, "non_retryable": "ValueError", "redelivery_handling": "3:move(queue:d)"},
        {"destination": ["queue://a", "queue://b"], "poll_quantity": 500},
        {**QUEUE, "poll_quantity": 25},
        {**QUEUE, "container_managed_events": "jms", "source_queue": "s", "poll_quantity": 500},
        {**QUEUE, "BatchSize": 2, "batch_size": "2", "ConcurrencyMode": "cc"},
    ],
)
def test_accepts(fields: dict[str, object]) -> None:
    assert ActivationSpec(**fields)


_SPELLINGS = [name for option in OPTIONS for _, name in option.spellings()]
_VALUES = (
    st.text(max_size=8)
    | st.integers(-2, 100)
    | st.booleans()
    | st.none()
    | st.sampled_from(
        ["queue://q", "topic://t", "Durable", "cc", "sync", "1:1", "lookup://x", "stomp://h?a=b", "jms"]
    )
    | st.lists(st.text(max_size=4), max_size=2)
    | st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.dictionaries(st.sampled_from(_SPELLINGS) | st.text(max_size=6), _VALUES, max_size=6))
def test_any_fields_are_read_or_refused(fields: dict[str, object]) -> None:
    with contextlib.suppress(ConfigurationError):
        spec = ActivationSpec(**fields)
        assert ActivationSpec.from_yaml(spec.to_yaml(secrets=True)) == spec


def test_a_blank_destination_is_missing_also_beside_other_faults() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ActivationSpec(destination="", BatchSize="-3")
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["BatchSize", "destination"]
