"""Distributed durable subscribers: J204-J211."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.configuration.subscription import SubscriptionName
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import ConfigurationError
from tests.unit.core.texts import ANY_TEXT

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))


@pytest.mark.parametrize(
    "text",
    [
        "jmsjca://?distribution=1&subscribername=s",
        "jmsjca://distribution=1&subscribername=s",
        "jmsjca://distributed=1&subscribername=s",
        "JMSJCA://?distributed=1&amp;SubscriberName=s",
    ],
)
def test_every_spelling_and_the_defaults_j206_j207_j210(text: str) -> None:
    name = SubscriptionName.parse(text)
    assert name == SubscriptionName(subscriber_name="s", distributed=True)
    assert name.batch_size == 10
    assert name.queue_for(Destination.topic("T1")) == Destination.queue("LOADBALQ_T1_s")
    assert name.name_for("mbean") == "mbean-LOADBALQ"


def test_all_keys_j206() -> None:
    name = SubscriptionName.parse("jmsjca://?distribution=1&subscribername=s&queue=q&mbeanname=m&batchsize=5")
    assert name == SubscriptionName(
        subscriber_name="s", distributed=True, queue="q", mbean_name="m", batch_size=5
    )
    assert name.queue_for(Destination.topic("T1")) == Destination.queue("q")
    assert name.name_for("mbean") == "m"


def test_switched_off_and_plain_j207() -> None:
    assert SubscriptionName.parse("jmsjca://?distribution=0&subscribername=s") == SubscriptionName(
        subscriber_name="s"
    )
    assert SubscriptionName.parse("sub47") == SubscriptionName(subscriber_name="sub47")


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", 1),
        ("jmsjca://", 2),
        ("jmsjca://?distribution=1", 1),
        ("jmsjca://?subscribername=s", 1),
        ("jmsjca://?distribution=yes&subscribername=s", 1),
        ("jmsjca://?distribution=1&distributed=0&subscribername=s", 1),
        ("jmsjca://?distribution=1&subscribername=s&batchsize=0", 1),
        ("jmsjca://?distribution=1&subscribername=s&batchsize=x&que=q", 2),
    ],
)
def test_refuses_j207_j211(text: str, faults: int) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SubscriptionName.parse(text)
    assert len(caught.value.faults) == faults


def test_hints_at_the_key_meant() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown key 'batch_size' .did you mean batchsize"):
        SubscriptionName.parse("jmsjca://?distribution=1&subscribername=s&batch_size=5")


@settings(max_examples=EXAMPLES, deadline=None)
@given(ANY_TEXT | st.text(alphabet="distrbuone=&?1subcrame").map("jmsjca://{}".format))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert SubscriptionName.parse(text).subscriber_name
