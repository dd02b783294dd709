from __future__ import annotations

from airflow_provider_jmsjca.engine.collecting.batch_spec import BatchSpec, CollectResult, EndReason
from airflow_provider_jmsjca.engine.collecting.batcher import collect
from airflow_provider_jmsjca.engine.collecting.claim import Choice, ClaimResult, ClaimSpec, claim

__all__ = [
    "BatchSpec",
    "Choice",
    "ClaimResult",
    "ClaimSpec",
    "CollectResult",
    "EndReason",
    "claim",
    "collect",
]
