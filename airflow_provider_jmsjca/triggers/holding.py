"""Holds messages after their events were stored, until their DAG runs end.

The records that have to survive a restart of the triggerer are in Airflow's state store of the watched asset.
Triggers, tasks and the scheduler have access to this store:

| key | value | written by |
|---|---|---|
| `jms-hold.<digest of the message>` | the tokens of its events, number of messages, start of the wait | the triggerer, with the event; the scheduler, when the DAG run starts |
| `jms-outcome.<token>` | `{"acknowledged": true}`, or false with the reason; outcomes of single messages in `messages` | `JmsAcknowledgeOperator`; the scheduler, when a DAG run ends |
| `jms-held` | the keys of records `jms-hold.*`, and of some deleted ones | the triggerer, with the event |
| `jms-heard` | the last outcomes, by token | `JmsAcknowledgeOperator`; the scheduler |
| `jms-started` | the time at which a DAG run last started | the scheduler, when a DAG run starts |

The reason of a failure names the failed task. Its exception is under `jms-failure` in the state store of the
task, where the task's process writes it; the scheduler puts it into the outcome.

A triggerer sends Airflow one query at a time, and each takes as long as storing an event. So it reads only
the two lists (`jms-held`, `jms-heard`), the records that a list names, and outcomes that are in no list.
`JmsAcknowledgeOperator` can't lock the list of outcomes, so its entry may be overwritten. Such outcomes are
read separately, after 10 seconds and then less often.

The record and the outcome of a message are deleted 30 seconds after the message was acknowledged. The outcome
of a batch is deleted with the record of its last message.
"""  # noqa: E501 - a table

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.message import stable_digest
from airflow_provider_jmsjca.engine.connecting.threads import end_task
from airflow_provider_jmsjca.engine.delivering.loop.signal import Signal
from airflow_provider_jmsjca.errors import JmsError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.triggers.payload import (
    OUTCOME_LIST_KEY,
    STARTED_KEY,
    awaited_dags,
    listed_outcomes,
    message_outcome,
    outcome_key,
)

if TYPE_CHECKING:  # `triggers.activation` imports this module at parse time
    from airflow_provider_jmsjca.engine.delivering.loop.stream import StreamDelivery

# Pauses between reads of the list of outcomes.
_LIST_PAUSES = Backoff(steps=tuple(timedelta(seconds=step) for step in (1, 1, 2, 3, 5, 10)), jitter=0)
# Pauses between reads of the outcome of one message.
_READ_PAUSES = Backoff(steps=tuple(timedelta(seconds=step) for step in (10, 30, 60, 120, 300)), jitter=0)
# Seconds between reads for a message whose timeout is over, while Airflow is not reachable.
_LEAST_SECONDS = 0.5
# Seconds between two queries, because all triggers of a triggerer send theirs over one pipe.
_BREATH_SECONDS = 0.02
# Seconds for which the records of acknowledged messages are kept. A broker that is killed may lose the
# acknowledgements and redeliver the messages after its restart. If the triggerer has also died in the
# meantime, only the records show that the messages were handled.
_KEPT_SECONDS = 30.0
_CLOSE_SECONDS = 0.3

_log = safe_logger(__name__)


class AssetStore(Protocol):
    """Airflow's state store of an asset, as triggers use it."""

    async def aget(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default."""

    async def aset(self, key: str, value: Any) -> None:
        """Store a value."""

    async def adelete(self, key: str) -> None:
        """Delete a value, if there is one."""


def record_key(message: JmsMessage, destination: Destination) -> str | None:
    """Return the key of a message's record, equal at each delivery; `None` for a message without an id."""
    digest = stable_digest(message, destination)
    return None if digest is None else f"jms-hold.{digest}"


@dataclass(slots=True, kw_only=True)
class Hold:
    """The wait of a message for the DAG runs of one event.

    Attributes:
        asset: Name of the event's asset.
        store: State store of the asset.
        key: Key of the message's record there; `None` for a message without an id, which has no record.
        token: Token of the event.
        of: Number of messages in the event.
        since: Start of the wait, in seconds since the epoch.
    """

    asset: str
    store: AssetStore
    key: str | None
    token: str
    of: int
    since: float

    @property
    def outcome_id(self) -> tuple[str, str]:
        """Key of the outcome: the asset and the token of its event."""
        return self.asset, self.token

    @classmethod
    async def found(cls, asset: str, store: AssetStore, key: str) -> Hold | None:
        """Return the hold of a message if its event is already stored, else `None`.

        Raises:
            JmsError: Airflow's asset store is not reachable.
        """
        record = await _record(store, key)
        if record is None:
            return None
        since, of = record.get("since"), record.get("of")
        return cls(
            asset=asset,
            store=store,
            key=key,
            token=record["token"],
            of=of if isinstance(of, int) else 1,
            since=float(since) if isinstance(since, int | float) else time.time(),
        )

    async def stored(self) -> bool:
        """Return whether Airflow has stored the message's record, which it stores together with the event.

        A message without an id has no record; for such a message the method returns `True`.

        Raises:
            JmsError: Airflow's asset store is not reachable.
        """
        return self.key is None or await _record(self.store, self.key) is not None


async def read_key(store: AssetStore, key: str) -> Any:
    """Return the value of a key; `None` if there is none.

    Raises:
        JmsError: Airflow's asset store is not reachable.
    """
    try:
        return await store.aget(key)
    except Exception as error:
        raise JmsError(f"Airflow's asset store can't be read: {type(error).__name__}: {error}") from error


async def _record(store: AssetStore, key: str) -> dict[str, Any] | None:
    record = await read_key(store, key)
    return record if isinstance(record, dict) and isinstance(record.get("token"), str) else None


@dataclass(slots=True, kw_only=True)
class _Held:
    """A held delivery, the outcomes it waits for, and the time of the next query for them."""

    delivery: StreamDelivery
    holds: Sequence[Hold]
    due: float
    reads: int = 0
    acknowledged: set[tuple[str, str]] = field(default_factory=set)


class Holder:
    """Settles deliveries by the outcome of their DAG runs. An instance belongs to one event loop.

    Guarantee: a message is acknowledged only after the outcomes of all its events acknowledge it. If the only
    missing outcomes are those of DAGs without a DAG run, the message is acknowledged after `timeout`.
    On close or crash, unsettled messages return to the broker. When the broker redelivers a message, the
    stream finds the record of the stored event, holds the message, and makes no second event.

    Args:
        timeout: Time after which a message without an outcome counts as failed. Each of these events restarts
            the time:

            - Airflow stores the message's event.
            - The message's DAG run starts.
            - While the message has no DAG run, another DAG run on the asset starts.
            - A holder is created after the time was over. The DAG may have been paused before, so that its
              DAG runs didn't proceed.
        source: Source of the messages, for the log.
        clock: Returns seconds, monotonic.
    """

    def __init__(self, timeout: timedelta, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout.total_seconds()
        self._source = source
        self._clock = clock
        self._created_at = time.time()
        self._held: list[_Held] = []
        self._settled: list[tuple[float, Hold]] = []
        self._changed = Signal()
        self._task: asyncio.Task[None] | None = None
        self._reported = ""
        self._list_reads = 0
        self._next_list_read = 0.0

    def take(self, delivery: StreamDelivery, holds: Sequence[Hold]) -> None:
        """Hold a delivery, and settle it when its DAG runs have ended."""
        held = _Held(delivery=delivery, holds=holds, due=0.0)
        self._schedule_read(held)
        self._read_list_soon(first=not self._held)
        self._held.append(held)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        """Stop settling deliveries, and delete the records of acknowledged messages.

        The call takes up to 0.3 seconds. It takes up to 5 seconds more if the holder's asyncio task doesn't
        end when it is cancelled.
        """
        task, self._task = self._task, None
        if task is not None:
            await end_task(task, "Reading outcomes of held messages")
        settled, self._settled = [hold for _, hold in self._settled], []
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._delete(settled)
        except Exception as error:  # noqa: BLE001 - as below; a record that stays does no harm
            _log.debug("Records of acknowledged messages stay in Airflow's asset store: %s", error)
        self._held.clear()

    async def _run(self) -> None:
        while True:
            outcomes: dict[tuple[str, str], Any] = {}
            if self._held and self._next_list_read <= self._clock():
                outcomes = await self._read_outcome_list()
            for held in [each for each in self._held if each.due <= self._clock()]:
                await self._read_outcome(held, outcomes)
            await self._forget()
            self._changed.clear()
            moments = [each.due for each in self._held] + [moment for moment, _ in self._settled]
            if self._held:
                moments.append(self._next_list_read)
            await self._changed.wait(max(_BREATH_SECONDS, min(moments) - self._clock()) if moments else None)

    def _read_list_soon(self, *, first: bool = True) -> None:
        """Schedule the next read of the list of outcomes soon, and the following reads at growing intervals.

        Args:
            first: Whether no delivery was held before. If `False`, an earlier read that is already scheduled
                stays.
        """
        self._list_reads = 0
        soon = self._clock() + _LIST_PAUSES.wait(1, 0).total_seconds()
        self._next_list_read = soon if first else min(self._next_list_read, soon)

    async def _read_outcome_list(self) -> dict[tuple[str, str], Any]:
        """Return the outcomes in the list, and let `_run` settle the messages that they decide at once."""
        self._list_reads += 1
        self._next_list_read = self._clock() + _LIST_PAUSES.wait(self._list_reads, 0).total_seconds()
        outcomes: dict[tuple[str, str], Any] = {}
        try:
            for asset, store in {
                hold.asset: hold.store for held in self._held for hold in held.holds
            }.items():
                listed = listed_outcomes(await store.aget(OUTCOME_LIST_KEY))
                outcomes |= {(asset, token): outcome for token, outcome in listed.items()}
        except Exception as error:  # noqa: BLE001 - whatever Airflow's store raises: it is asked again
            self._report(error)
        for held in self._held:
            own = held.delivery.message.message_id
            if any(
                hold.outcome_id not in held.acknowledged
                and message_outcome(outcomes.get(hold.outcome_id), own)
                for hold in held.holds
            ):
                held.due = self._clock()
                self._read_list_soon()
        return outcomes

    def _schedule_read(self, held: _Held) -> None:
        """Schedule the next read of a message's outcome under the key `jms-outcome.<token>`.

        The list of outcomes may lack it, as the text of the module explains. The read happens at the
        message's deadline at the latest.
        """
        held.reads += 1
        left = min(self._deadline(hold) for hold in held.holds) - time.time()
        wait = _READ_PAUSES.wait(held.reads, 0).total_seconds()
        held.due = self._clock() + min(wait, max(left, _LEAST_SECONDS))

    def _report(self, error: Exception) -> None:
        if str(error) != self._reported:
            self._reported = str(error)
            _log.warning(
                "Held messages%s stay unacknowledged, because Airflow's asset store can't be used; "
                "retrying: %s",
                self._source,
                error,
            )

    async def _read_outcome(self, held: _Held, outcomes: dict[tuple[str, str], Any]) -> None:
        """Read the outcome of one message, and settle its delivery if the outcome is known."""
        self._schedule_read(held)
        try:
            why = await self._failure(held, outcomes)
            if why is None and not held.acknowledged.issuperset(each.outcome_id for each in held.holds):
                return
            if why is not None:
                await self._delete(held.holds)  # its next delivery makes a new event
        except Exception as error:  # noqa: BLE001 - whatever Airflow's store raises: it is asked again
            self._report(error)
            return
        self._held.remove(held)
        if why is None:
            held.delivery.returned()
            self._settled += [(self._clock() + _KEPT_SECONDS, hold) for hold in held.holds]
        else:
            message_id = held.delivery.message.message_id
            _log.warning("Message %s%s is not acknowledged: %s", message_id, self._source, why)
            held.delivery.raised(JmsError(why))

    async def _failure(self, held: _Held, outcomes: dict[tuple[str, str], Any]) -> str | None:
        """Return why a message failed; `None` if it has not failed.

        The outcomes that acknowledge the message are recorded in `held`.

        Args:
            held: The message's delivery.
            outcomes: Known outcomes by `Hold.outcome_id`. Outcomes that are read are added.
        """
        for hold in held.holds:
            if hold.outcome_id in held.acknowledged:
                continue
            outcome = message_outcome(outcomes.get(hold.outcome_id), held.delivery.message.message_id)
            if outcome is None:
                await asyncio.sleep(_BREATH_SECONDS)
                outcomes[hold.outcome_id] = await hold.store.aget(outcome_key(hold.token))
                outcome = message_outcome(outcomes[hold.outcome_id], held.delivery.message.message_id)
            if outcome is True:
                held.acknowledged.add(hold.outcome_id)
            elif outcome is not None:
                return f"its DAG run did not acknowledge it: {outcome}"
            elif time.time() > self._deadline(hold) and not await self._renewed(hold):
                if dags := awaited_dags(outcomes[hold.outcome_id]):
                    _log.warning(
                        "Message %s%s is acknowledged: %s had no run for it within %g s (hold_timeout)",
                        held.delivery.message.message_id,
                        self._source,
                        ", ".join(dags),
                        self._timeout,
                    )
                    held.acknowledged.add(hold.outcome_id)
                    continue
                return f"its DAG run has not acknowledged it within {self._timeout:g} s (hold_timeout)"
        return None

    async def _renewed(self, hold: Hold) -> bool:
        """Return whether the timeout was restarted and isn't over yet.

        The start of the message's DAG run restarts it. While the message has no DAG run, the start of any
        other DAG run on the asset does.
        """
        if hold.key is None:
            return False
        record = await _record(hold.store, hold.key)
        if record is None or record["token"] != hold.token:
            return False
        begun = record.get("since") if record.get("started") else await hold.store.aget(STARTED_KEY)
        if not isinstance(begun, int | float):
            return False
        hold.since = max(hold.since, begun)
        return time.time() <= self._deadline(hold)

    def _deadline(self, hold: Hold) -> float:
        """Return the end of the timeout, in seconds since the epoch; `_renewed` may find a later end."""
        deadline = hold.since + self._timeout
        return deadline if deadline > self._created_at else self._created_at + self._timeout

    async def _forget(self) -> None:
        """Delete the records of messages that were acknowledged 30 seconds ago."""
        due = [hold for moment, hold in self._settled if moment <= self._clock()]
        self._settled = [each for each in self._settled if each[0] > self._clock()]
        try:
            await self._delete(due)
        except Exception as error:  # noqa: BLE001 - as above; a record that stays does no harm
            _log.debug("Records of acknowledged messages stay in Airflow's asset store: %s", error)

    @staticmethod
    async def _delete(holds: Sequence[Hold]) -> None:
        for hold in holds:
            if hold.key is not None:
                await hold.store.adelete(hold.key)
            await _delete_applied_outcome(hold)


async def _delete_applied_outcome(hold: Hold) -> None:
    """Delete an outcome once it was applied to every message of its event."""
    key = outcome_key(hold.token)
    outcome = await hold.store.aget(key) if hold.of > 1 else None
    if isinstance(outcome, dict) and (left := outcome.get("left", hold.of) - 1) > 0:
        await hold.store.aset(key, {**outcome, "left": left})
    else:
        await hold.store.adelete(key)
