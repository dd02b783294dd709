"""How many messages a broker may set aside for a consumer: decided here for all who consume.

What is asked for comes from the options of the destination, before the activation, session or batch that
consumes. `None` as an answer leaves the number to the broker's dialect.
"""

from __future__ import annotations

import math
from typing import Final

# Shared between the receivers of one destination; more is asked for where more is in hand at once.
_USUAL: Final = 100
# A run that may settle this many keeps the prefetch it has.
_LARGE: Final = 500
_SPARE: Final = 10
MOST_IN_ORDER: Final = 200
"""Most messages that wait for one acknowledgement: ActiveMQ hands out 200 and waits for it."""
# ActiveMQ hands out 200 messages at a time from its store, and a wider window slows its transactions down.
_OF_BATCH: Final = 200
# Sessions that wait for the broker after each message take one by one; the others would wait for messages.
_OF_UNSETTLED: Final = 100
# A topic's messages are the subscriber's own: nobody else misses them.
_OF_TOPIC: Final = 1000


def for_activation(
    asked: int | None, *, is_topic: bool, concurrency: int, batch_size: int, receivers: int
) -> int | None:
    """Return a prefetch under which nothing stalls and no receiver hoards.

    Whatever is in hand at once must fit in: all the units of work, each with its batch, and what a broker
    counts although it is acknowledged in a transaction. Beyond a batch a large window only slows commits.

    Args:
        asked: What the configuration says; a number below what is in hand at once is raised to that.
        is_topic: Whether the messages come from a topic.
        concurrency: Units of work at once.
        batch_size: Messages in each.
        receivers: Consumers that share the work.
    """
    if asked is not None:
        return max(asked, math.ceil(concurrency * batch_size / receivers))
    if batch_size > 1:
        # One more than all batches hold, whichever receivers their messages come from: what fills a prefetch
        # is acknowledged before its commit. A single batch would have to wait for messages after each commit.
        return 1 + max(2, concurrency) * batch_size
    if receivers > 1:
        return max(2, math.ceil(_USUAL / receivers))
    if is_topic:
        return None
    return None if concurrency <= _USUAL // 2 else 2 * concurrency


def for_unit(asked: int | None, *, concurrency: int, batch_size: int) -> int:
    """Return the prefetch of a consumer whose messages one batch at a time takes, in order.

    Several such consumers have no more than a batch each: nobody else could handle what waits behind it.

    Args:
        asked: What the configuration says.
        concurrency: How many such consumers there are.
        batch_size: Messages in each batch.
    """
    if concurrency > 1:
        return batch_size
    return max(batch_size, min(2 * batch_size, MOST_IN_ORDER) if asked is None else asked)


def for_limited_run(prefetch: int | None, limit: int) -> int | None:
    """Return the prefetch of a run that settles no more than `limit` messages of a queue.

    The broker sets aside that many, and a few that may stay unsettled. What goes back unseen at the end was
    kept from other consumers until then, and on quorum queues of RabbitMQ it counts as delivered.
    """
    most = limit + _SPARE
    return prefetch if most >= _LARGE else min(prefetch or most, most)


def consumers_of_limited_run(count: int, prefetch: int, limit: int) -> int:
    """Return how many consumers, with so much prefetch each, a run has that settles `limit` messages."""
    most = limit + _SPARE
    return count if most >= _LARGE else min(count, max(1, most // prefetch))


def for_session(asked: int | None, *, is_topic: bool, one_by_one: bool) -> int:
    """Return the prefetch of a session, which bounds what the caller may hold unsettled.

    Args:
        asked: What the destination or the session says.
        is_topic: Whether the messages come from a topic.
        one_by_one: Whether each message is settled when it is received.
    """
    if asked is not None:
        return asked
    if is_topic:
        return _OF_TOPIC
    return 1 if one_by_one else _OF_UNSETTLED


def for_session_that_keeps(prefetch: int) -> int:
    """Return the prefetch of a session once messages that stay unsettled have used up the one it had."""
    return max(_OF_UNSETTLED, 2 * prefetch)


def for_batch(asked: int | None, wanted: int, *, unit_frees_prefetch: bool) -> int:
    """Return the prefetch of a batch.

    Args:
        asked: What the spec says.
        wanted: How many messages are still to come for this segment.
        unit_frees_prefetch: As the capability of the broker. Without it, less would never fill a segment.
    """
    if unit_frees_prefetch:
        # More would be delivered only to be given back by the next consumer.
        return asked or min(wanted, _OF_BATCH)
    return max(asked or 0, wanted)
