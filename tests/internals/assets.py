from __future__ import annotations

from airflow_provider_jmsjca.assets import jms
from airflow_provider_jmsjca.assets.batch_facet import JmsBatchRunFacet
from airflow_provider_jmsjca.assets.jms import create_asset

__all__ = [
    "JmsBatchRunFacet",
    "create_asset",
    "jms",
]
