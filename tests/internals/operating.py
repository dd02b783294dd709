from __future__ import annotations

from airflow_provider_jmsjca.operating.dead_letters import REPLAY_COUNT, REPLAY_OF, grouped

__all__ = [
    "REPLAY_COUNT",
    "REPLAY_OF",
    "grouped",
]
