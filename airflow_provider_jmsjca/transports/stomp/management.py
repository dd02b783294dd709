"""Artemis' management address: attributes and operations of its queues, by request and reply.

The user needs the permission `manage`. Without it the broker closes the connection.

Source: Artemis user manual, "Management", "Using Management Message API".
"""

from __future__ import annotations

import json
import queue
import uuid
from typing import Any, Final, Self

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import ConnectionLostError, JmsError, PermanentBrokerError
from airflow_provider_jmsjca.transports.backlog import Backlog
from airflow_provider_jmsjca.transports.base import Received, Subscription
from airflow_provider_jmsjca.transports.stomp.consumer import subscribe
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from airflow_provider_jmsjca.transports.stomp.wire.frames import encode

_ADDRESS: Final = "activemq.management"
_NAMED_AT_MOST: Final = 1000
_UNKNOWN: Final = "AMQ229067"
"""Code of the error for an unknown resource.

Such errors are normal, because the broker deletes an auto-created queue once it is empty and unused.
"""


class UnknownQueueError(PermanentBrokerError):
    """The queue does not exist."""


BROKER: Final = "broker"
"""The resource that lists, creates and destroys queues."""


def queue_resource(name: str) -> str:
    """Return the name of a queue's management resource."""
    return f"queue.{name}"


class ManagementControl:
    """Sends requests to one management resource. Use it as a context manager.

    Args:
        link: A link to Artemis.
        resource: `BROKER`, or the result of `queue_resource`.
        timeout: Seconds to wait for each answer.
    """

    def __init__(self, link: Link, resource: str, timeout: float) -> None:
        self._link = link
        self._resource = resource
        self._timeout = timeout
        self._answers: queue.SimpleQueue[Received | None] = queue.SimpleQueue()
        self._reply_to = f"jmsjca.replies.{uuid.uuid4().hex}"
        self._take_back = link.on_lost(lambda _: self._answers.put(None))
        self._consumer = subscribe(
            link, Subscription(destination=Destination.queue(self._reply_to)), self._answers.put
        )

    def __enter__(self) -> Self:
        """Return the control; its constructor has subscribed to the answers."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop receiving answers."""
        self._take_back()
        if self._link.is_up:
            self._consumer.close()

    def attribute(self, name: str) -> int:
        """Return the value of a numeric attribute.

        Raises:
            PermanentBrokerError: The broker refuses, or its answer isn't a number.
            ConnectionLostError: The broker did not answer in time.
        """
        found = self._ask({"_AMQ_Attribute": name}, b"")
        try:
            return int(found)
        except (TypeError, ValueError) as error:
            raise _unreadable(error) from error

    def call(self, operation: str, *arguments: str | int | bool) -> Any:
        """Run an operation and return its result.

        Raises:
            PermanentBrokerError: The broker refuses, or its answer isn't a JSON list.
            ConnectionLostError: The broker did not answer in time.
        """
        return self._ask({"_AMQ_OperationName": operation}, json.dumps(arguments).encode())

    def _ask(self, what: dict[str, str], body: bytes) -> Any:
        headers = {
            "destination": _ADDRESS,
            "destination-type": "ANYCAST",
            "reply-to": self._reply_to,
            "_AMQ_ResourceName": self._resource,
            **what,
        }
        # No content-length: with one, the broker treats the body as bytes and closes the connection.
        self._link.wire.write(encode("SEND", headers.items(), body))
        try:
            received = self._answers.get(timeout=self._timeout)
        except queue.Empty:
            raise ConnectionLostError(f"no answer from {_ADDRESS} for {self._timeout:g} s") from None
        if received is None:
            raise PermanentBrokerError(
                f"the broker closed the connection after a request to {_ADDRESS}; the user needs the "
                "permission 'manage'"
            )
        message = received.readable  # an operation without a result answers without a body
        self._consumer.acknowledge((received,))
        text = message.body if message is not None and isinstance(message.body, str) else ""
        if message is None or message.properties.get("_AMQ_OperationSucceeded") != "true":
            kind = UnknownQueueError if _UNKNOWN in text else PermanentBrokerError
            raise kind(f"{_ADDRESS} refused {self._resource}: {text}")
        try:
            answer = json.loads(text) if text else []
            return answer[0] if answer else None
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            raise _unreadable(error) from error


def backlog(link: Link, destination: Destination, timeout: float) -> Backlog:
    """Return the backlog of a queue; all zero if the queue does not exist.

    Raises:
        CapabilityError: The broker doesn't report backlogs.
        PermanentBrokerError: The user lacks the permission, or the answer can't be parsed.
        ConnectionLostError: The broker did not answer in time.
    """
    link.dialect.capabilities.require(link.broker, "backlog", purpose="asking what a queue holds")
    with ManagementControl(link, queue_resource(destination.name), timeout) as control:
        try:
            return _counted(control)
        except UnknownQueueError:
            return Backlog()
        except JmsError:
            raise
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise _unreadable(error) from error


def _unreadable(error: Exception) -> PermanentBrokerError:
    return PermanentBrokerError(f"the answer of {_ADDRESS} is invalid: {type(error).__name__}: {error}")


def _counted(control: ManagementControl) -> Backlog:
    # An operation comes first: for an attribute, the broker's refusal doesn't reveal a missing queue.
    there = int(control.call("countMessages"))
    taken = control.attribute("deliveringCount")
    waiting = there - taken - control.attribute("scheduledCount")
    consumers = control.attribute("consumerCount")
    listed = control.call("listDeliveringMessagesAsJSON") if 0 < taken <= _NAMED_AT_MOST else None
    return Backlog(waiting=max(0, waiting), taken=taken, consumers=consumers, taken_ids=_ids(listed))


def _ids(listed: str | None) -> frozenset[str]:
    groups = json.loads(listed) if listed else []
    return frozenset(str(each["messageID"]) for group in groups for each in group.get("elements", ()))
