from __future__ import annotations

from airflow_provider_jmsjca.plugins import state_messages
from airflow_provider_jmsjca.plugins.state_messages import (
    MOST_WAITING,
    StateMessages,
    StatePublisher,
    Target,
    task_state,
)

__all__ = [
    "MOST_WAITING",
    "StateMessages",
    "StatePublisher",
    "Target",
    "state_messages",
    "task_state",
]
