from __future__ import annotations

from airflow_provider_jmsjca.operators import collect, spark
from airflow_provider_jmsjca.operators.run_state import RunState
from airflow_provider_jmsjca.operators.web_links import (
    JmsBatchLink,
    JmsDeadLettersLink,
    JmsSparkUiLink,
    console_address,
)

__all__ = [
    "JmsBatchLink",
    "JmsDeadLettersLink",
    "JmsSparkUiLink",
    "RunState",
    "collect",
    "console_address",
    "spark",
]
