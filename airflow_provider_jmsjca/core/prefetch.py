"""Prefetch: the number of messages that a broker may reserve for a consumer, computed here for every driver.

A requested prefetch comes from the destination's options first, then from the activation, session or batch.
A result of `None` leaves the number to the broker's dialect.
"""

from __future__ import annotations

import math
from typing import Final

# Shared between the receivers of one destination; more in-flight messages need a larger prefetch.
_USUAL: Final = 100
# A run with at least this limit keeps its prefetch.
_LARGE: Final = 500
_SPARE: Final = 10
MOST_IN_ORDER: Final = 200
"""Maximum number of messages per acknowledgement: ActiveMQ sends 200, then waits for the acknowledgement."""
# ActiveMQ reads 200 messages at a time from its store; a larger prefetch slows its transactions down.
_OF_BATCH: Final = 200
# Sessions that wait for the broker after each message use 1. Other sessions would have to wait for messages
# with so small a prefetch.
_OF_UNSETTLED: Final = 100
# A subscriber has its own copies of a topic's messages, so prefetching keeps none from other consumers.
_OF_TOPIC: Final = 1000


def for_activation(
    asked: int | None, *, is_topic: bool, concurrency: int, batch_size: int, receivers: int
) -> int | None:
    """Return the prefetch of each receiver: enough to avoid stalls, without hoarding messages.

    The prefetch covers all in-flight messages: a batch for each unit of work, and messages acknowledged in an
    open transaction. A broker may count acknowledged messages until their commit. Beyond a batch, a larger
    prefetch only slows commits.

    Args:
        asked: The configured prefetch; raised to the number of in-flight messages if it is lower.
        is_topic: Whether the messages come from a topic.
        concurrency: Maximum number of concurrent units of work.
        batch_size: Number of messages in each unit of work.
        receivers: Number of consumers that share the work.
    """
    if asked is not None:
        return max(asked, math.ceil(concurrency * batch_size / receivers))
    if batch_size > 1:
        # One more than all batches hold, as one receiver may supply them all: messages filling a prefetch are
        # acknowledged before their commit. A single batch would wait for messages after each commit.
        return 1 + max(2, concurrency) * batch_size
    if receivers > 1:
        return max(2, math.ceil(_USUAL / receivers))
    if is_topic:
        return None
    return None if concurrency <= _USUAL // 2 else 2 * concurrency


def for_unit(asked: int | None, *, concurrency: int, batch_size: int) -> int:
    """Return the prefetch of a consumer that handles one batch at a time, in order.

    With several such consumers, the prefetch is one batch. Further messages would have to wait for this
    consumer, although another one may be free.

    Args:
        asked: The configured prefetch.
        concurrency: Number of such consumers.
        batch_size: Messages in each batch.
    """
    if concurrency > 1:
        return batch_size
    return max(batch_size, min(2 * batch_size, MOST_IN_ORDER) if asked is None else asked)


def for_limited_run(prefetch: int | None, limit: int) -> int | None:
    """Return the prefetch of a run that settles no more than `limit` messages of a queue.

    The prefetch is `limit` plus a few messages that may stay unsettled. With more, messages would be returned
    unprocessed at the end of the run. Until then they would be unavailable to other consumers, and RabbitMQ
    quorum queues would count them as delivered.
    """
    most = limit + _SPARE
    return prefetch if most >= _LARGE else min(prefetch or most, most)


def consumers_of_limited_run(count: int, prefetch: int, limit: int) -> int:
    """Return the number of consumers of a run that settles `limit` messages, given the prefetch of each."""
    most = limit + _SPARE
    return count if most >= _LARGE else min(count, max(1, most // prefetch))


def for_session(asked: int | None, *, is_topic: bool, one_by_one: bool) -> int:
    """Return the prefetch of a session, which limits the caller's unsettled messages.

    Args:
        asked: The prefetch set on the destination or the session.
        is_topic: Whether the messages come from a topic.
        one_by_one: Whether each message is settled when it is received.
    """
    if asked is not None:
        return asked
    if is_topic:
        return _OF_TOPIC
    return 1 if one_by_one else _OF_UNSETTLED


def for_session_that_keeps(prefetch: int) -> int:
    """Return the prefetch of a session after unsettled messages have used up the previous prefetch."""
    return max(_OF_UNSETTLED, 2 * prefetch)


def for_batch(asked: int | None, wanted: int, *, unit_frees_prefetch: bool) -> int:
    """Return the prefetch of a batch.

    Args:
        asked: The prefetch in the spec.
        wanted: Number of messages that this segment still needs.
        unit_frees_prefetch: The broker's capability of that name. Without it, a smaller prefetch would never
            fill a segment.
    """
    if unit_frees_prefetch:
        # Further messages would be delivered only to be returned.
        return asked or min(wanted, _OF_BATCH)
    return max(asked or 0, wanted)
