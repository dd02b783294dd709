"""Acknowledges or rolls back, in a task, the messages that started the DAG run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Asset, BaseOperator, Context
from airflow.sdk.definitions.asset import AssetNameRef, AssetUriRef

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.task_failures import context_entry, task_failures
from airflow_provider_jmsjca.triggers.payload import (
    OUTCOME_LIST_KEY,
    hold_token,
    is_still_held,
    message_ids,
    outcome_key,
    with_listed_outcome,
)

_OUTCOMES = ("acknowledge", "roll_back")


class JmsAcknowledgeOperator(BaseOperator):
    """Acknowledges the messages of the events that started the DAG run, or rolls them back for redelivery.

    Use it with a `JmsActivationTrigger` that has `hold_until_ack=True`. Without this operator a message is
    acknowledged when its DAG run succeeds. With it, a message is acknowledged when this task has succeeded,
    even if the DAG run fails afterwards. The first outcome is final: a later one has no effect.

    Guarantee: the outcome is stored when the task succeeds; the trigger applies it within about 10 seconds.
    If the trigger crashes before that, it reads the outcome after its restart, so no DAG run is repeated.

    Args:
        asset: The asset that started the DAG run. If another DAG file defines its watcher, use
            `Asset.ref(name="...")` here. A second definition without watchers would remove the existing ones.
        outcome: `"acknowledge"`, or `"roll_back"` to apply the redelivery handling to the messages.
        message_ids: Ids of the messages that the outcome applies to, usually the XCom of the task that
            processes them; `None` for all. So a DAG run with several messages can roll back only the failed
            ones. The end of the DAG run settles the others. Templated.

    Returns:
        The number of events with held messages to which the outcome applies, including events that had an
        outcome already.

    Raises:
        ConfigurationError: `asset` is not an asset.

    Source: J192-J199.
    """

    template_fields = ("message_ids",)
    ui_color = "#cfe3c8"

    def __init__(
        self,
        *,
        asset: Asset | AssetNameRef | AssetUriRef,
        outcome: str = "acknowledge",
        message_ids: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(asset, Asset | AssetNameRef | AssetUriRef):
            raise ConfigurationError(f"asset is {asset!r}; expected the Asset whose watcher has the trigger")
        inlets = [*(kwargs.pop("inlets", None) or ()), asset]
        super().__init__(inlets=inlets, **kwargs)
        self.asset = asset
        self.outcome = outcome
        self.message_ids = message_ids

    def execute(self, context: Context) -> int:
        """Store the outcome for each event that started the DAG run."""
        with task_failures():
            if self.outcome not in _OUTCOMES:
                raise ConfigurationError(
                    f"outcome is {self.outcome!r}; expected one of {', '.join(map(repr, _OUTCOMES))}"
                )
            stores = context_entry(context, "asset_state_store")
            triggering = context_entry(context, "triggering_asset_events")
        outcome: dict[str, Any] = {"acknowledged": True}
        if self.outcome != _OUTCOMES[0]:
            instance = context_entry(context, "ti")
            where = f"DAG {instance.dag_id} rolled it back in run {instance.run_id}"
            outcome = {"acknowledged": False, "why": f"task {self.task_id} of {where}"}
        store = stores[self.asset]
        events = triggering[self.asset]
        # Only events from triggers have held messages. A task that passes an event on creates a new event,
        # without held messages.
        own = [event.extra for event in events if event.source_task_id is None]
        waiting = {str(hold_token(extra)): extra for extra in own if hold_token(extra)}
        spoken = 0
        for token, extra in waiting.items():
            key = outcome_key(token)
            stored = store.get(key)
            merged = self._merged_outcome(outcome, stored, extra)
            if merged is None:
                continue
            spoken += 1
            if merged != stored and is_still_held(extra, store.get):
                store.set(key, merged)
                store.set(OUTCOME_LIST_KEY, with_listed_outcome(store.get(OUTCOME_LIST_KEY), token, merged))
        if not waiting:
            self.log.warning(
                "Nothing to acknowledge: this run was started by no event of %r that waits for it. The "
                "asset's trigger needs hold_until_ack=True",
                self.asset,
            )
        return spoken

    def _merged_outcome(
        self, outcome: dict[str, Any], stored: object, extra: object
    ) -> dict[str, Any] | None:
        """Return the outcome to store for an event: the stored outcome, supplemented by this task's.

        Args:
            outcome: The outcome of this task.
            stored: The value stored for the event: an outcome, or something else if a task wrote it.
            extra: The event's `extra`, with the ids of its messages.

        Returns:
            The merged outcome, in which a final stored outcome takes precedence. `None` if the event has no
            message with an id in `message_ids`.
        """
        before = stored if isinstance(stored, dict) else {}
        by_id: dict[str, Any] = {}
        if self.message_ids is not None:
            by_id = dict.fromkeys(sorted({*message_ids(extra)} & {*self.message_ids}), outcome)
            if not by_id:
                return None
        if "awaits" in before:  # not final: the outcome waits for DAGs without a run, perhaps for this DAG
            before = {name: value for name, value in before.items() if name not in {"acknowledged", "awaits"}}
        if "acknowledged" in before:
            return before
        return {**before, **(outcome if not by_id else {"messages": by_id | before.get("messages", {})})}
