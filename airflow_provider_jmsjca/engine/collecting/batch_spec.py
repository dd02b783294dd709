"""Specification and result of a batch."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_jmsjca.core.redelivery import MoveTarget
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import Subscription

DEFAULT_SEGMENT_MESSAGES = 5_000
DEFAULT_SEGMENT_BYTES = 64 * 1024 * 1024
_LARGEST_SEGMENT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """Source and limits of a batch.

    A batch ends at the first of `max_messages`, `max_bytes`, `max_time` and `idle_time`; `max_messages` or
    `max_time` must be given.

    Attributes:
        subscription: The source. Its `prefetch` is one segment by default. If the broker counts messages
            acknowledged in an open transaction towards the prefetch, a smaller value is raised to the size of
            a segment.
        max_messages: Maximum number of messages, including those of earlier attempts.
        max_bytes: The batch ends once bodies and properties received in this attempt reach this size.
        max_time: How long this attempt collects, outages included.
        idle_time: The batch ends after this time without a message; `None`: silence doesn't end it.
        segment_messages: Maximum number of messages in a segment, 1 to 10,000; one commit per segment.
        segment_bytes: A segment is sealed once its bodies and properties reach this size, in bytes.
        flush_time: A partial segment is sealed after this time without a message.
        moves_to: Possible targets of later moves. A target from which messages would return to the source is
            refused before the collection starts.
    """

    subscription: Subscription
    max_messages: int | None = None
    max_bytes: int | None = None
    max_time: timedelta | None = None
    idle_time: timedelta | None = None
    segment_messages: int = DEFAULT_SEGMENT_MESSAGES
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    flush_time: timedelta = timedelta(seconds=1)
    moves_to: tuple[MoveTarget, ...] = ()

    def __post_init__(self) -> None:
        faults = []
        if self.max_messages is None and self.max_time is None:
            faults.append("a batch needs max_messages or max_time, or it would never end")
        if self.max_messages is not None and self.max_messages < 1:
            faults.append(f"max_messages is {self.max_messages}; expected at least 1")
        if self.max_bytes is not None and self.max_bytes < 1:
            faults.append(f"max_bytes is {self.max_bytes}; expected at least 1")
        if not 1 <= self.segment_messages <= _LARGEST_SEGMENT:
            faults.append(f"segment_messages is {self.segment_messages}; expected 1 to {_LARGEST_SEGMENT}")
        if self.segment_bytes < 1:
            faults.append(f"segment_bytes is {self.segment_bytes}; expected at least 1")
        faults.extend(
            f"{name} is {value}; expected more than 0"
            for name, value in (
                ("max_time", self.max_time),
                ("idle_time", self.idle_time),
                ("flush_time", self.flush_time),
            )
            if value is not None and value <= timedelta(0)
        )
        if faults:
            raise ConfigurationError(faults)


class EndReason(enum.StrEnum):
    """Why a collection or a run of a listener ended."""

    COUNT = "count"
    BYTES = "bytes"
    TIME = "time"
    IDLE = "idle"
    STOPPED = "stopped"
    FAILURES = "failures"
    """Repeated failures of the same messages (listeners only)."""
    BLOCKED = "blocked"
    """No message arrived, and the broker may hold messages for a blocked connection (listeners only)."""
    DRAINED = "drained"
    """An operator drained the batch: received messages are sealed (batches only)."""
    COMPLETE = "complete"
    """An earlier attempt had finished the batch; no message was received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResult:
    """Result of a collection.

    Attributes:
        reason: Why the collection ended.
        manifest: URI of the batch's manifest; `None` if the collection was stopped, because the next attempt
            continues the batch.
        rows: Messages in the batch, including those of earlier attempts.
        segments: Segments in the batch.
        received: Deliveries by the broker in this attempt.
        stored: Messages sealed in this attempt.
        duplicates: Deliveries that were dropped because their message is in a sealed segment.
        undecodable: Stored messages that the transport couldn't decode.
        left: Undecodable messages without readable bytes; they stay at the broker.
        reconnects: Number of reconnects.
        seconds: Duration in seconds.
    """

    reason: EndReason
    manifest: str | None
    rows: int
    segments: int
    received: int = 0
    stored: int = 0
    duplicates: int = 0
    undecodable: int = 0
    left: int = 0
    reconnects: int = 0
    seconds: float = 0.0

    def summary(self) -> str:
        """Return the counts in one line, without those that are 0."""
        counts = {
            "received": self.received,
            "duplicates": self.duplicates,
            "undecodable": self.undecodable,
            "left": self.left,
            "reconnects": self.reconnects,
        }
        shown = "".join(f", {name} {count:,}" for name, count in counts.items() if count)
        return (
            f"{self.rows:,} {'message' if self.rows == 1 else 'messages'} in {self.segments} "
            f"{'file' if self.segments == 1 else 'files'}{shown}; ended by {self.reason} after "
            f"{self.seconds:.1f} s"
        )
