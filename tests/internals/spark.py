from __future__ import annotations

from airflow_provider_jmsjca.spark.archive import write_archive
from airflow_provider_jmsjca.spark.data_failure import data_failure
from airflow_provider_jmsjca.spark.data_sources.from_broker import JmsStreamReader, SpoolingReceiver
from airflow_provider_jmsjca.spark.dead_letters import send_dead_letters
from airflow_provider_jmsjca.spark.job import EXIT_CONFIGURATION
from airflow_provider_jmsjca.spark.jobs import messages_to_table
from airflow_provider_jmsjca.spark.jobs.messages_to_table import body_options, main
from airflow_provider_jmsjca.spark.mapping import sort_tried, split
from airflow_provider_jmsjca.spark.progress import ProgressLines
from airflow_provider_jmsjca.spark.rejects import Reject, reject_reasons
from airflow_provider_jmsjca.spark.replays import make_replay
from airflow_provider_jmsjca.spark.tables import TableAttempt, delta, jdbc, parquet
from airflow_provider_jmsjca.spark.tables.parquet import replace_by_overwrite, replace_by_rename

__all__ = [
    "EXIT_CONFIGURATION",
    "JmsStreamReader",
    "ProgressLines",
    "Reject",
    "SpoolingReceiver",
    "TableAttempt",
    "body_options",
    "data_failure",
    "delta",
    "jdbc",
    "main",
    "make_replay",
    "messages_to_table",
    "parquet",
    "reject_reasons",
    "replace_by_overwrite",
    "replace_by_rename",
    "send_dead_letters",
    "sort_tried",
    "split",
    "write_archive",
]
