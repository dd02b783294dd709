"""Queue probes, which are made together for each connection."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.connecting.threads import ThreadPool
from airflow_provider_jmsjca.errors import TransientBrokerError
from airflow_provider_jmsjca.transports.base import Connection

# Seconds between two probes over one connection, so that at most ten queues are probed in a second. These ten
# share a round trip, which takes a tenth of the time: most of a probe is spent on waking threads.
_APART_SECONDS = 0.1

# Maximum number of queues in one round trip.
_TOGETHER = 10


@dataclass(frozen=True, slots=True, eq=False)
class _Probe:
    queue: Destination
    selector: str | None
    found: asyncio.Future[JmsMessage | None]


class SharedProbes:
    """The probes of all watches over one connection, in one event loop.

    Of the probes that wait first (`after`), at most ten are made in a second. So the more watches there are,
    the less often each queue is probed.
    """

    def __init__(self) -> None:
        self._thread_pool = ThreadPool(1)
        self._due: dict[float, list[_Probe]] = {}
        self._next = 0.0
        self._waiting = 0

    async def probe(
        self, connection: Connection, queue: Destination, selector: str | None, *, after: float = 0.0
    ) -> JmsMessage | None:
        """Return the first message of a queue; `None` if the queue is empty.

        Args:
            connection: The connection of these probes.
            queue: The queue.
            selector: Only matching messages count.
            after: Minimum seconds to wait first; 0 probes at once.

        Raises:
            CapabilityError: The broker can't be browsed.
            JmsError: The probe failed.

        Guarantee: on cancellation it returns at once.
        """
        loop = asyncio.get_running_loop()
        probe = _Probe(queue, selector, loop.create_future())
        turn = self._turn(loop.time(), after) if after else 0.0
        if turn not in self._due:
            self._due[turn] = []
            loop.call_at(turn, self._begin, turn, connection)
        self._due[turn].append(probe)
        self._waiting += 1
        try:
            return await probe.found
        finally:
            self._waiting -= 1

    def _turn(self, now: float, after: float) -> float:
        first = now + after
        turn = min(max(first, self._next), first + self._waiting * _APART_SECONDS)
        self._next = turn + _APART_SECONDS
        return turn if turn == first else math.ceil(turn)

    def _begin(self, turn: float, connection: Connection) -> None:
        due = [probe for probe in self._due.pop(turn) if not probe.found.done()]
        loop = asyncio.get_running_loop()
        for begin in range(0, len(due), _TOGETHER):
            together = due[begin : begin + _TOGETHER]
            try:
                self._thread_pool.submit(functools.partial(_make, connection, together, loop))
            except TransientBrokerError as error:
                _answer(together, [error] * len(together))


def _make(connection: Connection, probes: Sequence[_Probe], loop: asyncio.AbstractEventLoop) -> None:
    """Probe queues, and pass the results to the waiting tasks; called in a thread.

    Args:
        connection: The connection.
        probes: The queues, each with the future that gets the result.
        loop: The event loop of these futures.
    """
    answers: Sequence[JmsMessage | BaseException | None]
    try:
        answers = connection.first_messages([(probe.queue, probe.selector) for probe in probes])
    except BaseException as error:  # noqa: BLE001 - raised again where the answers are awaited
        answers = [error] * len(probes)
    with contextlib.suppress(RuntimeError):  # the loop has ended, so no task waits any more
        loop.call_soon_threadsafe(_answer, probes, answers)


def _answer(probes: Sequence[_Probe], answers: Sequence[JmsMessage | BaseException | None]) -> None:
    for probe, answer in zip(probes, answers, strict=True):
        if probe.found.done():
            continue
        if isinstance(answer, BaseException):
            # A copy for each task, because tasks must not raise the same exception object.
            probe.found.set_exception(copy.copy(answer))
        else:
            probe.found.set_result(answer)


_probes_by_loop: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.WeakKeyDictionary[Connection, SharedProbes]
] = weakref.WeakKeyDictionary()


def probes_of(connection: Connection) -> SharedProbes:
    """Return the probes over a connection in the running event loop."""
    known = _probes_by_loop.setdefault(asyncio.get_running_loop(), weakref.WeakKeyDictionary())
    found = known.get(connection)
    if found is None:
        found = known[connection] = SharedProbes()
    return found
