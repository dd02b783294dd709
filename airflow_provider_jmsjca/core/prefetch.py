"""Prefetch: the number of messages that a broker may reserve for a consumer, computed here for every driver.

A requested prefetch comes from the destination's options first, then from the activation, session or batch.
A result of `None` leaves the number to the broker's dialect.
"""

from __future__ import annotations

import math
from typing import Final

# Default prefetch of an activation, shared between its receivers. It is raised for more in-flight messages.
_DEFAULT: Final = 100
# A run that settles at least this number of messages keeps its prefetch.
_LARGE: Final = 500
_SPARE: Final = 10
MOST_IN_ORDER: Final = 200
"""Maximum number of messages per acknowledgement: ActiveMQ sends 200, then waits for the acknowledgement."""
# Default prefetch of a batch. ActiveMQ reads 200 messages at a time from its store, and a larger prefetch
# slows its transactions down.
_OF_BATCH: Final = 200
# Default prefetch of a session that keeps messages unsettled. (A session that settles each message at once
# and waits for the broker uses 1, because it gains nothing from a larger prefetch.)
_OF_UNSETTLED: Final = 100
# Default prefetch of a session for a topic. It may be large, because each subscriber has its own copies of
# the messages, and so keeps none from other consumers.
_OF_TOPIC: Final = 1000


def for_activation(
    requested: int | None, *, is_topic: bool, concurrency: int, batch_size: int, receivers: int
) -> int | None:
    """Return the prefetch of each receiver: enough to avoid stalls, without hoarding messages.

    The prefetch covers all in-flight messages: a batch for each unit of work. It includes messages that are
    acknowledged in an open transaction, because a broker may count them until the commit. The default for
    batches isn't larger, because that only slows commits.

    Args:
        requested: The configured prefetch; raised to the number of in-flight messages if it is lower.
        is_topic: Whether the messages come from a topic.
        concurrency: Maximum number of concurrent units of work.
        batch_size: Number of messages in each unit of work.
        receivers: Number of consumers that share the work.
    """
    if requested is not None:
        return max(requested, math.ceil(concurrency * batch_size / receivers))
    if batch_size > 1:
        # One receiver may supply all batches. Their messages plus one, because messages that fill the whole
        # prefetch are acknowledged before their commit. At least two batches, because a prefetch of a single
        # batch would delay each commit by the wait for messages.
        return 1 + max(2, concurrency) * batch_size
    if receivers > 1:
        return max(2, math.ceil(_DEFAULT / receivers))
    if is_topic:
        return None
    return None if concurrency <= _DEFAULT // 2 else 2 * concurrency


def for_unit(requested: int | None, *, concurrency: int, batch_size: int) -> int:
    """Return the prefetch of a consumer that handles one batch at a time, in order.

    With several such consumers, the prefetch is one batch. Further messages would have to wait for this
    consumer, although another one may be free.

    Args:
        requested: The configured prefetch; ignored with several consumers.
        concurrency: Number of such consumers.
        batch_size: Messages in each batch.
    """
    if concurrency > 1:
        return batch_size
    return max(batch_size, min(2 * batch_size, MOST_IN_ORDER) if requested is None else requested)


def for_limited_run(prefetch: int | None, limit: int) -> int | None:
    """Return the prefetch of a run that settles no more than `limit` messages of a queue.

    The prefetch is at most `limit` plus a few messages that may stay unsettled. With more, messages would be
    returned unprocessed at the end of the run. Until then they would be unavailable to other consumers, and
    RabbitMQ quorum queues would count them as delivered. A run of about 500 messages or more keeps its
    prefetch.
    """
    most = limit + _SPARE
    return prefetch if most >= _LARGE else min(prefetch or most, most)


def consumers_of_limited_run(count: int, prefetch: int, limit: int) -> int:
    """Return the number of consumers of a run that settles `limit` messages, given the prefetch of each."""
    most = limit + _SPARE
    return count if most >= _LARGE else min(count, max(1, most // prefetch))


def for_session(requested: int | None, *, is_topic: bool, settles_each: bool) -> int:
    """Return the prefetch of a session, which limits the caller's unsettled messages.

    Args:
        requested: The prefetch set on the destination or the session.
        is_topic: Whether the messages come from a topic.
        settles_each: Whether each message is settled when it is received.
    """
    if requested is not None:
        return requested
    if is_topic:
        return _OF_TOPIC
    return 1 if settles_each else _OF_UNSETTLED


def for_unsettled_session(prefetch: int) -> int:
    """Return the prefetch of a session after unsettled messages have used up the previous prefetch."""
    return max(_OF_UNSETTLED, 2 * prefetch)


def for_batch(requested: int | None, missing: int, *, unit_frees_prefetch: bool) -> int:
    """Return the prefetch of a batch.

    Args:
        requested: The prefetch in the spec; `None`: not set.
        missing: Maximum number of messages in the next segment: the messages that one commit settles.
        unit_frees_prefetch: The broker's capability of that name. Without it, a smaller prefetch would never
            fill a segment.
    """
    if unit_frees_prefetch:
        # Not more than wanted, because further messages would have to be returned.
        return requested or min(missing, _OF_BATCH)
    return max(requested or 0, missing)
