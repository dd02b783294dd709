"""RabbitMQ: the HTTP API of its management plugin, at the `management_url` of the connection.

RabbitMQ can't show messages in their queue. To browse, its API takes messages off the queue and requeues
them. RabbitMQ then marks each message as redelivered, and a quorum queue counts it as a delivery against its
delivery limit.

Source: RabbitMQ documentation, "Management Plugin"; HTTP API reference of 3.10.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import ssl
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final
from urllib.parse import quote

import httpx

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.masking import mask_values
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector import selector_text
from airflow_provider_jmsjca.errors import (
    AuthenticationError,
    CapabilityError,
    ConfigurationError,
    ConnectionLostError,
    PermanentBrokerError,
    PoisonMessageError,
)
from airflow_provider_jmsjca.transports.administration import (
    BrokerResource,
    MessageSelection,
    QueueAdministration,
    QueueOperation,
    QueueStatistics,
    mebibytes,
)
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Subscription
from airflow_provider_jmsjca.transports.stomp.decoding import Decoder
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame, escape

_PAGE: Final = 500
_LONGEST_ANSWER: Final = 256 * 1024 * 1024
_LONGEST_BODY: Final = 64 * 1024 * 1024
_UNAUTHORIZED: Final = (401, 403)
_NOT_FOUND: Final = 404
_NODES: Final = "nodes?columns=name,mem_used,mem_limit,disk_free,disk_free_limit"
_REMEDIES: Final = {
    "memory": "consume or purge full queues, or raise the limit: "
    "rabbitmqctl set_vm_memory_high_watermark 0.6",
    "disk": "free disk space on the node, or lower the limit: rabbitmqctl set_disk_free_limit 1GB",
}
_FAILED: Final = 503
_PERSISTENT: Final = 2
_HEADER_OF: Final = {
    "content_type": "content-type",
    "correlation_id": "correlation-id",
    "expiration": "expiration",
    "message_id": "amqp-message-id",
    "priority": "priority",
    "reply_to": "reply-to",
    "timestamp": "timestamp",
    "type": "type",
}
"""AMQP property -> header in which RabbitMQ's STOMP plugin sends the property."""


class HttpApiAdministration(QueueAdministration):
    """Administration of RabbitMQ queues without selectors, moves or copies.

    Deleting always empties the whole queue.

    Args:
        link: A link to RabbitMQ; its settings contain the `management_url`.
    """

    browse_note: ClassVar[str] = (
        "RabbitMQ marks the messages it shows as redelivered, and a quorum queue counts the look against its "
        "delivery limit."
    )
    blocked_hint: ClassVar[str] = (
        "rabbitmq-diagnostics alarms shows whether RabbitMQ's memory or disk alarm is on; with "
        "management_url in the Airflow connection, so does this command"
    )
    way_out: ClassVar[str] = "consume the queue instead, for example with airflow jms dlq replay"

    def __init__(self, link: Link) -> None:
        super().__init__(link.broker)
        self._link = link
        self._settings = link.settings
        self._client: httpx.Client | None = None
        self._vhost = _segment(link.settings.virtual_host or "/")

    @property
    def operations(self) -> frozenset[QueueOperation]:
        """The operations that the API offers; empty without a `management_url`."""
        if not self._settings.management_url:
            return frozenset()
        offered = {
            QueueOperation.LIST,
            QueueOperation.STATISTICS,
            QueueOperation.BROWSE,
            QueueOperation.DELETE,
        }
        return frozenset(offered)

    def queues(self) -> list[QueueStatistics]:
        """Return every queue of the virtual host, sorted by name."""
        found: list[QueueStatistics] = []
        page, pages = 1, 1
        while page <= pages:
            path = f"queues/{self._vhost}?page={page}&page_size={_PAGE}"
            answer = self._call("GET", path, purpose="listing queues")
            try:
                items = answer["items"]
                found += [_statistics(each) for each in items]
                pages = int(answer["page_count"]) if items else 0
            except (TypeError, KeyError, ValueError, OverflowError) as error:
                raise _unreadable(error) from error
            page += 1
        return sorted(found, key=lambda each: each.name)

    def statistics(self, queue: str) -> QueueStatistics | None:
        """Return the figures of one queue, `None` if it does not exist.

        RabbitMQ updates the figures every five seconds.
        """
        path = f"queues/{self._vhost}/{_segment(queue)}"
        answer = self._call("GET", path, purpose=f"counting the messages of {queue!r}", missing=True)
        return None if answer is None else _statistics(answer)

    def browse(
        self, queue: str, *, selector: str | None = None, skip: int = 0, limit: int = 100
    ) -> Sequence[JmsMessage]:
        """Return a page of messages in queue order; see `browse_note` for its side effect."""
        if selector_text(selector):
            raise CapabilityError(f"the selector {selector!r}: {self._link.broker} has no selectors")
        path = f"queues/{self._vhost}/{_segment(queue)}/get"
        asked = {
            "count": skip + limit,
            "ackmode": "ack_requeue_true",
            "encoding": "base64",
            "truncate": _LONGEST_BODY,
        }
        answer = self._call("POST", path, purpose=f"browsing {queue!r}", missing=True, body=asked)
        if answer is None:
            return []
        if not isinstance(answer, list):
            raise _unreadable(TypeError(f"{type(answer).__name__} instead of a list of messages"))
        decoder = Decoder(self._link.dialect, Subscription(destination=Destination.queue(queue)))
        return [_message(decoder, queue, each) for each in answer[skip:]]

    def delete(self, queue: str, selection: MessageSelection) -> int:
        """Delete all messages except in-flight ones.

        Returns:
            The number of deleted messages, from statistics taken before the deletion.
        """
        if selection.ids or selection.selector:
            raise self._lacks(f"deleting selected messages of {queue!r}")
        before = self.statistics(queue)
        path = f"queues/{self._vhost}/{_segment(queue)}/contents"
        self._call("DELETE", path, purpose=f"emptying {queue!r}")
        return 0 if before is None else before.messages - (before.in_flight or 0)

    def resources(self) -> list[BrokerResource]:
        """Return the resources with an alarm; while one node has an alarm, all nodes block producers."""
        answer = self._call("GET", "health/checks/alarms", purpose="asking for alarms", or_status=_FAILED)
        try:
            alarms = [(str(each["resource"]), str(each["node"])) for each in answer.get("alarms", [])]
        except (TypeError, KeyError, AttributeError) as error:
            raise _unreadable(error) from error
        nodes: object = None
        if alarms:
            # A user without the tag 'monitoring' sees the alarms, but not the figures.
            with contextlib.suppress(AuthenticationError):
                nodes = self._call("GET", _NODES, purpose="asking for memory and disk")
        return [
            BrokerResource(
                name=f"{resource} of {node}",
                blocking=True,
                figures=_figures(nodes, resource, node),
                remedy=_REMEDIES.get(resource, "free the resource or raise its limit"),
                shown_by="rabbitmq-diagnostics alarms, rabbitmqctl status",
            )
            for resource, node in alarms
        ]

    def time(self) -> datetime:
        """Return the time in the `Date` header of an answer."""
        client = self._connected("asking for the time")
        try:
            # The status of the answer doesn't matter: every answer has the header.
            text = client.head("overview").headers.get("date", "")
            return parsedate_to_datetime(text).astimezone(UTC)
        except httpx.HTTPError as error:
            raise self._unreachable("asking for the time", error) from None
        except (ValueError, OverflowError) as error:
            raise _unreadable(error) from error

    def close(self) -> None:
        """Close the HTTP connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _call(
        self,
        method: str,
        path: str,
        *,
        purpose: str,
        missing: bool = False,
        body: object = None,
        or_status: int | None = None,
    ) -> Any:
        """Call the API, and return the parsed answer; `None` if it is empty.

        Args:
            method: The HTTP method.
            path: The path below `/api/`.
            purpose: Purpose of the call, at the beginning of errors.
            missing: Return `None` for status 404, instead of raising.
            body: Value to send as JSON.
            or_status: Further status that counts as success.
        """
        client = self._connected(purpose)
        until = time.monotonic() + self._settings.reply_timeout.total_seconds()
        try:
            with client.stream(method, path, json=body) as response:
                if response.status_code == _NOT_FOUND and missing:
                    return None
                content = _content(response, until)
        except httpx.HTTPError as error:
            raise self._unreachable(purpose, error) from None
        if response.status_code in _UNAUTHORIZED:
            raise AuthenticationError(
                f"{purpose}: RabbitMQ's management API refuses user {self._settings.username!r} "
                f"({response.status_code}); give the user the tag 'monitoring' or 'management'"
            )
        if not response.is_success and response.status_code != or_status:
            raise PermanentBrokerError(
                f"{purpose}: RabbitMQ's management API answered {response.status_code}"
            )
        if not content:
            return None
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _unreadable(error) from error

    def _unreachable(self, purpose: str, error: httpx.HTTPError) -> ConnectionLostError:
        said = mask_values(f"{type(error).__name__}: {error}", self._settings.secrets)
        return ConnectionLostError(f"{purpose}: the management_url cannot be reached: {said}")

    def _connected(self, purpose: str) -> httpx.Client:
        settings = self._settings
        if not settings.management_url:
            raise CapabilityError(
                f"{purpose}: RabbitMQ shows queues only through its management plugin; set management_url in "
                "the Airflow connection, for example http://broker:15672"
            )
        if self._client is None:
            user, password = settings.username or "guest", settings.password or "guest"
            try:
                base_url = httpx.URL(f"{settings.management_url.rstrip('/')}/api/")
            except httpx.InvalidURL:
                raise ConfigurationError(
                    "management_url: not a valid URL; expected for example http://broker:15672"
                ) from None
            self._client = httpx.Client(
                base_url=base_url,
                auth=(user, password),
                timeout=settings.reply_timeout.total_seconds(),
                verify=_tls(settings),
                follow_redirects=False,
                trust_env=False,
            )
        return self._client


def _tls(settings: ConnectionSettings) -> ssl.SSLContext | bool:
    tls = settings.tls
    if tls is None or (tls.verify and tls.ca_file is None):
        return True
    if not tls.verify:
        return False
    return ssl.create_default_context(cafile=tls.ca_file)


def _segment(name: str) -> str:
    """Escape a name as one segment of a path.

    Raises:
        ConfigurationError: The name is not Unicode text, or is `.` or `..`. RabbitMQ resolves those two even
            if they are escaped: emptying the queue `.` would delete a queue named `contents`.
    """
    if name in {".", ".."}:
        raise ConfigurationError(f"RabbitMQ's management API cannot address the name {name!r}")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"the name {name!r} holds half a surrogate pair: no Unicode text") from error


def _content(response: httpx.Response, until: float) -> bytes:
    """Return the body of a response.

    Args:
        response: The response, whose body is not read yet.
        until: Deadline for the end of the body, on the clock of `time.monotonic`.
    """
    parts: list[bytes] = []
    size = 0
    for part in response.iter_bytes():
        size += len(part)
        if size > _LONGEST_ANSWER:
            raise PermanentBrokerError(
                f"the answer of RabbitMQ's management API is longer than {_LONGEST_ANSWER} bytes; ask for "
                "fewer messages"
            )
        if time.monotonic() > until:
            raise ConnectionLostError(
                "RabbitMQ's management API did not finish its answer within the reply timeout"
            )
        parts.append(part)
    return b"".join(parts)


def _unreadable(error: Exception) -> PermanentBrokerError:
    return PermanentBrokerError(
        f"the answer of RabbitMQ's management API cannot be read: {type(error).__name__}: {error}"
    )


def _figures(nodes: object, resource: str, node: str) -> str:
    """Return use and limit of a resource of a node; empty where the answer does not have them."""
    try:
        for each in nodes if isinstance(nodes, list) else []:
            if each["name"] == node and resource == "memory" and "mem_used" in each:
                return f"{mebibytes(int(each['mem_used']))} used, limit {mebibytes(int(each['mem_limit']))}"
            if each["name"] == node and resource == "disk" and "disk_free" in each:
                free, limit = int(each["disk_free"]), int(each["disk_free_limit"])
                return f"{mebibytes(free)} free, limit {mebibytes(limit)}"
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise _unreadable(error) from error
    return ""


def _statistics(row: Mapping[str, Any]) -> QueueStatistics:
    try:
        counters = row.get("message_stats") or {}
        return QueueStatistics(
            name=str(row["name"]),
            messages=int(row.get("messages") or 0),
            in_flight=int(row.get("messages_unacknowledged") or 0),
            consumers=None if row.get("consumers") is None else int(row["consumers"]),
            enqueued=None if "publish" not in counters else int(counters["publish"]),
            dequeued=None if "ack" not in counters else int(counters["ack"]),
        )
    except (TypeError, KeyError, ValueError, OverflowError, AttributeError) as error:
        raise _unreadable(error) from error


def _message(decoder: Decoder, queue: str, row: Mapping[str, Any]) -> JmsMessage:
    """Return a message of the API as the STOMP plugin would deliver it."""
    try:
        properties = dict(row.get("properties") or {})
        headers = dict(properties.get("headers") or {})
        body = (
            base64.b64decode(row["payload"])
            if row["payload_encoding"] == "base64"
            else row["payload"].encode()
        )
    except (TypeError, KeyError, ValueError, binascii.Error, AttributeError) as error:
        raise _unreadable(error) from error
    lines = [("destination", f"/queue/{quote(queue, safe='')}")]
    lines += [(_HEADER_OF[name], _text(value)) for name, value in properties.items() if name in _HEADER_OF]
    lines += [("persistent", "true")] if properties.get("delivery_mode") == _PERSISTENT else []
    lines += [("redelivered", _text(bool(row.get("redelivered"))))]
    lines += [(str(name), _text(value)) for name, value in headers.items()]
    head = "".join(f"\n{escape(name)}:{escape(value)}" for name, value in lines).encode("utf-8", "replace")
    frame = Frame(b"MESSAGE", head, body)
    try:
        return decoder.decode(frame, again=False)
    except PoisonMessageError:
        return decoder.salvage(frame)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list | dict) else str(value)
