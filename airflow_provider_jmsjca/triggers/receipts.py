"""Acknowledges messages when Airflow's state store of the watched asset shows that their events were stored.

Airflow's confirmation isn't enough: if the asset isn't watched any more, Airflow drops an event but confirms
it. This happens if the DAG was paused or its file was edited a moment ago. So the transaction that stores an
event also writes a receipt to the asset's store. A message is acknowledged after its receipt was read. Each
read serves all events that wait for receipts then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_jmsjca.engine.connecting.threads import end_task
from airflow_provider_jmsjca.engine.delivering.loop.signal import Signal
from airflow_provider_jmsjca.engine.delivering.loop.stream import StreamDelivery
from airflow_provider_jmsjca.errors import JmsError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.triggers.holding import AssetStore, read_key
from airflow_provider_jmsjca.triggers.payload import has_number

# Seconds to wait for a receipt. If Airflow has dropped the event, it normally cancels the trigger within two
# seconds, and the messages return to the broker then.
_GIVEN_UP_SECONDS = 30.0
_AGAIN_SECONDS = 0.5

_log = safe_logger(__name__)


@dataclass(frozen=True, slots=True)
class Receipt:
    """The key and number by which the asset's state store shows whether a trigger's event was stored.

    Attributes:
        stores: State stores of the assets that the trigger watches, by name. A receipt in one of them is
            enough, because the DAG of another asset may be paused.
        key: Key of the receipts.
        stream: Identifies the start of the trigger.
        number: Number of the event.
    """

    stores: Mapping[str, AssetStore]
    key: str
    stream: str
    number: int


async def are_stored(receipts: Iterable[Sequence[Receipt]]) -> list[bool]:
    """Return for each event whether all its receipts exist; each stored value is read once.

    Raises:
        JmsError: Airflow's asset store is not reachable.
    """
    rows: dict[tuple[str, str], Any] = {}

    async def is_shown(receipt: Receipt) -> bool:
        for name, store in receipt.stores.items():
            if (name, receipt.key) not in rows:
                rows[name, receipt.key] = await read_key(store, receipt.key)
            if has_number(rows[name, receipt.key], receipt.stream, receipt.number):
                return True
        return False

    return [all([await is_shown(receipt) for receipt in each]) for each in receipts]


@dataclass(frozen=True, slots=True)
class ConfirmedDeliveries:
    """Deliveries of an event that Airflow has confirmed."""

    deliveries: Sequence[StreamDelivery]
    receipts: Sequence[Receipt]
    since: float

    def returned(self) -> None:
        """Settle the messages of an event that is stored."""
        for delivery in self.deliveries:
            delivery.returned()


class Acknowledger:
    """Acknowledges messages once Airflow has stored their events. Belongs to one event loop.

    Airflow confirms that it took an event from the trigger, even if it then drops the event. So a message is
    acknowledged only after its receipt was read from the asset's store. The receipt is written in the
    transaction that stores the event.

    Guarantee: a message is not acknowledged if its event was dropped. It stays unsettled until the trigger
    ends, or is rolled back half a minute after Airflow's confirmation.

    Args:
        clock: Returns seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: list[ConfirmedDeliveries] = []
        self._changed = Signal()
        self._task: asyncio.Task[None] | None = None
        self._reported = ""

    def take(self, deliveries: Sequence[StreamDelivery], receipts: Sequence[Receipt]) -> None:
        """Commit deliveries of a confirmed event when its receipts exist; roll them back after half a minute.

        Args:
            deliveries: The deliveries of the event.
            receipts: Receipts of the event; all of them must exist.
        """
        self._waiting.append(ConfirmedDeliveries(deliveries, receipts, self._clock()))
        self._changed.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> list[ConfirmedDeliveries]:
        """Stop within 5 seconds; return the events that still wait."""
        task, self._task = self._task, None
        if task is not None:
            await end_task(task, "Reading receipts of events")
        waiting, self._waiting = self._waiting, []
        return waiting

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            await self._check_receipts()
            await self._changed.wait(_AGAIN_SECONDS if self._waiting else None)

    async def _check_receipts(self) -> None:
        waiting = tuple(self._waiting)
        try:
            found = await are_stored(each.receipts for each in waiting)
        except JmsError as error:  # read again later, and logged once
            if str(error) != self._reported:
                self._reported = str(error)
                _log.warning(
                    "Messages can't be acknowledged yet, because their events can't be looked up in "
                    "Airflow; retrying: %s",
                    error,
                )
            return
        for each, is_shown in zip(waiting, found, strict=True):
            if is_shown:
                each.returned()
            elif self._clock() > each.since + _GIVEN_UP_SECONDS:
                for delivery in each.deliveries:
                    delivery.raised(JmsError("Airflow confirmed its event but did not store it"))
            else:
                continue
            self._waiting.remove(each)
