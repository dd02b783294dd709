"""Operators whose `execute` is called without the context of a running task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_jmsjca import (
    JmsAcknowledgeOperator,
    JmsCollectOperator,
    JmsListenOperator,
    JmsPublishOperator,
    JmsRequestOperator,
    JmsSensor,
)

SPEC = {"jms_conn_id": "jms_test", "destination": "queue://orders"}
QUEUE: dict[str, Any] = {"task_id": "t", **SPEC}


def handle(delivery: object) -> None:
    """Handle a message by doing nothing."""


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("operator", "missing", "more"),
    [
        (JmsListenOperator, "ti", {"task_id": "t", "spec": SPEC, "on_message": handle, "idle_for": 1}),
        (JmsPublishOperator, "ti", {**QUEUE, "messages": ["a"], "deduplicate": True}),
        (JmsCollectOperator, "ti", {**QUEUE, "spool_path": ...}),
        (JmsRequestOperator, "ti", {**QUEUE, "message": "a", "reply_to": "queue://a", "spool_path": ...}),
        (JmsSensor, "ti", {**QUEUE, "peek": False, "spool_path": ...}),
        (JmsAcknowledgeOperator, "asset_state_store", {"task_id": "t", "asset": Asset("orders")}),
    ],
)
def test_an_empty_context_is_named(operator: Any, missing: str, more: dict[str, Any], tmp_path: Path) -> None:
    if "spool_path" in more:
        more = more | {"spool_path": str(tmp_path)}
    with pytest.raises(AirflowFailException, match=f"the context has no '{missing}'; expected that of a run"):
        operator(**more).execute({})
