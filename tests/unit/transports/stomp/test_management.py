"""Answers of Artemis' management address that can't be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import PermanentBrokerError
from airflow_provider_jmsjca.transports.stomp import management
from airflow_provider_jmsjca.transports.stomp.management import ManagementControl


class Message:
    def __init__(self, text: str) -> None:
        self.readable = JmsMessage.text(text, {"_AMQ_OperationSucceeded": "true"})


class Wire:
    def write(self, frame: bytes) -> None:
        """Send it nowhere."""


class Consumer:
    def acknowledge(self, messages: tuple[Any, ...]) -> None:
        """Take it for done."""


class Link:
    is_up = False
    wire = Wire()

    def on_lost(self, told: Callable[[Any], None]) -> Callable[[], None]:
        return lambda: told(None)


@pytest.mark.parametrize("answer", ["no", "[", '{"a": 1}', '"x"', '["x"]', "[null]", "[[]]", "[" * 100_000])
def test_an_answer_that_is_no_number_is_an_error_of_ours(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def subscribe(link: Any, subscription: Any, received: Callable[[Any], None]) -> Consumer:
        del link, subscription
        received(Message(answer))
        return Consumer()

    monkeypatch.setattr(management, "subscribe", subscribe)
    link: Any = Link()
    with (
        ManagementControl(link, "queue.orders", 1) as control,
        pytest.raises(PermanentBrokerError, match=r"the answer of activemq\.management is invalid"),
    ):
        control.attribute("messageCount")
