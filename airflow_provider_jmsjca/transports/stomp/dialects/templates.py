"""What the heads of messages that come in a row have in common, so that not each is decoded from scratch.

The messages of one destination mostly have the same headers in the same order, and the same values but for
their ids, their times and some properties. One regular expression finds those in a fraction of the time that
decoding all headers takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, Final, NamedTuple, Protocol

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame

_MOST_SHAPES: Final = 16
_MOST_HEADERS: Final = 64
_LONGEST_HEAD: Final = 8 * 1024
_TIMESTAMP: Final = "timestamp"
_REDELIVERED: Final = "redelivered"
_VALUE: Final = r"[^\n]*+"


class Template(NamedTuple):
    """Heads that differ in the message's id, its timestamp, whether it comes again, and in properties.

    Attributes:
        match: Matches such a head; its groups are the values that differ.
        identifier: The group of the id.
        timestamp: That of the timestamp.
        redelivered: That of the mark of a redelivered message; 0 if there is none.
        properties: Those of the properties that differ, with the header and the name of each.
        headers: All headers of one of the heads, decoded.
        message: The message of that one, without its body.
    """

    match: Callable[[str], re.Match[str] | None]
    identifier: int
    timestamp: int
    redelivered: int
    properties: tuple[tuple[int, str, str], ...]
    headers: Mapping[str, str]
    message: JmsMessage


class Reading(Protocol):
    """What a dialect says of received headers; `Dialect` says what each attribute means."""

    hidden: ClassVar[frozenset[str]]
    unread: ClassVar[frozenset[str]]
    decisive: ClassVar[Mapping[str, frozenset[str]]]
    identifier: ClassVar[str]

    def property_name(self, header: str) -> str:
        """Return the name of the property that a header is, one that isn't hidden."""


class Templates:
    """Learns templates from the messages that come for one subscription. Any thread may ask.

    Args:
        dialect: Knows what headers mean.
    """

    __slots__ = ("_dialect", "_seen", "_template", "_templates")

    def __init__(self, dialect: Reading) -> None:
        self._dialect = dialect
        self._template: Template | None = None
        # By the names of the headers; `None`: they have headers that differ besides.
        self._templates: dict[tuple[str, ...], Template | None] = {}
        self._seen: dict[tuple[str, ...], Mapping[str, str]] = {}

    def match(self, frame: Frame) -> tuple[Template, re.Match[str]] | None:
        """Return the template of a frame and its match; `None` if it isn't like the one before it."""
        template = self._template
        if template is None:
            return None
        try:
            found = template.match(frame.head.decode())
        except UnicodeDecodeError:
            return None
        return None if found is None else (template, found)

    def learn(self, frame: Frame, headers: Mapping[str, str], message: JmsMessage) -> None:
        """Be ready for more frames like this one, which `match` didn't know; two of them are needed.

        Args:
            frame: What came.
            headers: As `Frame.headers` returned them.
            message: What it is.
        """
        names = tuple(headers)
        if len(frame.head) > _LONGEST_HEAD or frame.head.count(b"\n") != len(names):
            return  # too long to be kept, or one comes twice
        current, self._template = self._template, self._templates.get(names)
        if self._template is not current:
            return  # the next one may match
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
        self._template = self._templates[names] = self._made(frame, headers, message, differing)

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
            if not line.startswith(f"{header}:"):  # it is escaped
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
        bodiless = replace(message, body=None)  # not to keep it in memory
        return Template(match, identifier, timestamp, redelivered, tuple(properties), headers, bodiless)
