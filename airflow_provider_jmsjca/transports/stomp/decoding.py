"""Turns MESSAGE frames into deliveries and decodes each message on first access.

The messages of one destination mostly have the same headers in the same order. Only their ids, their
timestamps and some properties differ. The decoder learns the common part from the heads of consecutive
messages. One regular expression then extracts the rest in a fraction of the time of decoding all headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from airflow_provider_jmsjca.core.configuration.destination_options import broker_options
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import PoisonMessageError
from airflow_provider_jmsjca.transports.base import (
    ABOUT_US,
    Consumer,
    Received,
    Subscription,
    poison_error,
)
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import BODILESS, BODY_KIND, Dialect, Template
from airflow_provider_jmsjca.transports.stomp.dialects.java_bodies import TRANSFORMATION, with_map
from airflow_provider_jmsjca.transports.stomp.spill import SpilledFrame
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame

_MOST_SHAPES: Final = 16
_MOST_HEADERS: Final = 64
_LONGEST_HEAD: Final = 8 * 1024
_TIMESTAMP: Final = "timestamp"
_REDELIVERED: Final = "redelivered"
_VALUE: Final = r"[^\n]*+"


class TemplateLearner:
    """Learns templates from the messages of one subscription. Thread-safe.

    A `Template` is the common part of similar messages: a pattern of their heads, and an example. A message
    that matches it is decoded without decoding all of its headers, which takes a fraction of the time.

    Args:
        dialect: The dialect that interprets the headers.

    Attributes:
        template: The template of the last messages; `None`: there is none.
    """

    __slots__ = ("_dialect", "_seen", "_templates", "template")

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.template: Template | None = None
        # Keyed by header names; `None`: other headers differ too, so there is no template.
        self._templates: dict[tuple[str, ...], Template | None] = {}
        self._seen: dict[tuple[str, ...], Mapping[str, str]] = {}

    def learn(self, frame: Frame, headers: Mapping[str, str], message: JmsMessage) -> None:
        """Learn from a frame that `template` does not match; two similar frames make a template.

        Args:
            frame: The received frame.
            headers: The result of `Frame.headers`.
            message: The decoded message.
        """
        names = tuple(headers)
        if len(frame.head) > _LONGEST_HEAD or frame.head.count(b"\n") != len(names):
            return  # the head is too long to keep, or a header is repeated
        current, self.template = self.template, self._templates.get(names)
        if self.template is not current:
            return  # the next frame may match
        if current is not None:
            seen, differing = current.headers, {header for _, header, _ in current.properties}
        elif names in self._templates:
            return
        elif names in self._seen:
            seen, differing = self._seen[names], set()
        else:
            if len(self._seen) < _MOST_SHAPES and len(names) <= _MOST_HEADERS:
                self._seen[names] = headers
            return
        differing.update(header for header in names if headers[header] != seen[header])
        self.template = self._templates[names] = self._made(frame, headers, message, differing)

    def _made(
        self, frame: Frame, headers: Mapping[str, str], message: JmsMessage, differing: set[str]
    ) -> Template | None:
        dialect = self._dialect
        shown = [dialect.property_name(header) for header in headers if header not in dialect.hidden]
        if len(shown) != len(set(shown)):
            return None
        groups = {dialect.identifier: 0, _TIMESTAMP: 0, _REDELIVERED: 0}
        properties: list[tuple[int, str, str]] = []
        patterns: list[str] = []
        group = 1
        for header, line in zip(headers, frame.head.decode().split("\n")[1:], strict=True):
            start = f"\n{re.escape(header)}:"
            if not line.startswith(f"{header}:"):  # the name is escaped
                return None
            if header in dialect.unread:
                patterns.append(start + _VALUE)
                continue
            same = dialect.decisive.get(header, ())
            if headers[header] in same and header not in message.properties:
                patterns.append(f"{start}(?:{'|'.join(map(re.escape, same))})")
                continue
            if header not in groups and header not in differing:
                patterns.append(f"\n{re.escape(line)}")
                continue
            if header in groups:
                groups[header] = group
            elif header in dialect.hidden or header in dialect.decisive:
                return None
            else:
                properties.append((group, header, dialect.property_name(header)))
            patterns.append(f"{start}({_VALUE})")
            group += 1
        identifier, timestamp, redelivered = groups.values()
        if not (identifier and timestamp):
            return None
        match = re.compile("".join(patterns)).fullmatch
        bodiless = replace(message, body=None)  # do not keep the body in memory
        return Template(match, identifier, timestamp, redelivered, tuple(properties), headers, bodiless)


class Decoder:
    """Decodes the frames of one subscription.

    Args:
        dialect: The dialect that decodes a frame, or salvages an undecodable one.
        subscription: The subscription of the frames.
    """

    __slots__ = ("_bodiless", "_dialect", "_maps", "_subscription", "_templates")

    def __init__(self, dialect: Dialect, subscription: Subscription) -> None:
        self._dialect = dialect
        self._subscription = subscription
        self._templates = TemplateLearner(dialect)
        options = broker_options(subscription.destination)
        self._bodiless = options.get(BODILESS)
        self._maps = TRANSFORMATION in options

    def decode(self, frame: Frame, *, again: bool) -> JmsMessage:
        """Decode a frame.

        Args:
            frame: The received frame.
            again: Whether to set `redelivered`: the message was delivered before, but the broker does not
                mark it.

        Raises:
            PoisonMessageError: The message cannot be decoded. The content of a frame raises no other
                exception.
        """
        if frame.fault is not None:
            raise PoisonMessageError(f"the message is malformed: {frame.fault}")
        is_typed = self._bodiless is None or bool(frame.body)
        template = self._templates.template if is_typed else None
        try:
            try:
                found = None if template is None else template.match(frame.head.decode())
            except UnicodeDecodeError:  # `Frame.headers` reports it
                found = None
            if template is not None and found is not None:
                message = self._dialect.decode_alike(frame, template, found)
            else:
                headers = frame.headers()
                # An empty bytes message has a content-length, so its kind is known.
                if not is_typed and "content-length" not in headers:
                    headers.setdefault(BODY_KIND, self._bodiless or "")
                message = self._dialect.decode(frame, headers, self._subscription)
                if is_typed:
                    self._templates.learn(frame, headers, message)
            if self._maps:
                message = with_map(message)
        except ABOUT_US:
            raise
        except Exception as error:
            raise poison_error(error) from error
        return replace(message, redelivered=True) if again else message

    def salvage(self, frame: Frame) -> JmsMessage:
        """Return the readable parts of an undecodable message; raises only `MemoryError`."""
        return self._dialect.salvage(frame, self._subscription)


class ReceivedFrame(Received):
    """A delivery that decodes its frame on first access to its message.

    Args:
        consumer: The consumer that settles the delivery.
        token: The acknowledgement id for ACK.
        generation: The generation of the consumer.
        decoder: The decoder of the subscription.
        frame: The received frame.
        again: The `again` argument of `Decoder.decode`.
    """

    __slots__ = ("_again", "_decoder", "_frame")

    def __init__(  # noqa: PLR0917 - a call by position, once for each message
        self, consumer: Consumer, token: bytes, generation: int, decoder: Decoder, frame: Frame, again: bool
    ) -> None:
        self.consumer = consumer
        self.token = token
        self.generation = generation
        self.decoded = None
        self._decoder = decoder
        self._frame = frame
        self._again = again

    @property
    def message(self) -> JmsMessage:
        """The decoded message.

        Raises:
            PoisonMessageError: The message cannot be decoded.
            ConnectionLostError: The message was spilled to disk and cannot be read back.
        """
        message = self.decoded
        if message is None:
            if isinstance(self._frame, SpilledFrame):
                # Not cached: a caller that looks ahead would hold all spilled messages in memory.
                return self._decoder.decode(self._frame.loaded(), again=self._again)
            message = self.decoded = self._decoder.decode(self._frame, again=self._again)
        return message

    @property
    def is_on_disk(self) -> bool:
        """Whether the frame is kept on disk, because the memory limit was reached."""
        return isinstance(self._frame, SpilledFrame)

    @property
    def salvaged(self) -> JmsMessage | None:
        """A bytes message with the unchanged body."""
        frame = self._frame
        return self._decoder.salvage(frame.loaded() if isinstance(frame, SpilledFrame) else frame)
