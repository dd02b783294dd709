from __future__ import annotations

from airflow_provider_jmsjca.operating.dead_letters import REPLAY_COUNT, REPLAY_OF, grouped
from airflow_provider_jmsjca.operating.queues import find_message

__all__ = [
    "REPLAY_COUNT",
    "REPLAY_OF",
    "find_message",
    "grouped",
]
