from __future__ import annotations

from airflow_provider_jmsjca.spool import attempts, rows, spool
from airflow_provider_jmsjca.spool.attempts import (
    COMMIT_LOCK,
    Done,
    RejectsFile,
    check_fence,
    current_fence,
    take_fence,
)
from airflow_provider_jmsjca.spool.batch_id import TaskKey, replay_id
from airflow_provider_jmsjca.spool.files import (
    ObjectPath,
    SpoolPath,
    add_name,
    build_folder,
    create_marker,
    entries,
    entry_of,
    exists,
    has_renames,
    hdfs,
    is_folder,
    make_folder,
    names_in,
    numbered,
    objects,
    open_file,
    read_document,
    read_file,
    remove,
    remove_by_prefix,
    remove_folder,
    remove_if_unused,
    renew,
    seal,
    stage,
    walk,
)
from airflow_provider_jmsjca.spool.files.client import StoreError
from airflow_provider_jmsjca.spool.files.cloud import Cloud
from airflow_provider_jmsjca.spool.files.hdfs import WebHdfs
from airflow_provider_jmsjca.spool.files.listing import ListingRelay, SkippedNames
from airflow_provider_jmsjca.spool.files.posix import TEMPORARY_PREFIX
from airflow_provider_jmsjca.spool.known_ids import (
    BATCH,
    SEGMENT_STEM,
    DeduplicationWindow,
    count_rows,
    message_key,
)
from airflow_provider_jmsjca.spool.manifest import (
    MANIFEST,
    path_for_spark,
    path_to_uri,
    pattern_for_spark,
    uri_to_path,
)
from airflow_provider_jmsjca.spool.references import FOLDER, read_message, seal_message, sweep_references
from airflow_provider_jmsjca.spool.rows import Row
from airflow_provider_jmsjca.spool.schema import MESSAGE_DDL
from airflow_provider_jmsjca.spool.secret import secret_code
from airflow_provider_jmsjca.spool.sequence import BatchSequence
from airflow_provider_jmsjca.spool.splits import RowRange, make_part, parts, was_split
from airflow_provider_jmsjca.spool.spool import SpoolBatch, unfinished_batches
from airflow_provider_jmsjca.spool.upkeep.replays import Selection
from airflow_provider_jmsjca.spool.upkeep.salvage import salvage
from airflow_provider_jmsjca.spool.upkeep.states import State, adopt, batches, describe, prune, verify

__all__ = [
    "BATCH",
    "COMMIT_LOCK",
    "FOLDER",
    "MANIFEST",
    "MESSAGE_DDL",
    "SEGMENT_STEM",
    "TEMPORARY_PREFIX",
    "BatchSequence",
    "Cloud",
    "DeduplicationWindow",
    "Done",
    "ListingRelay",
    "ObjectPath",
    "RejectsFile",
    "Row",
    "RowRange",
    "Selection",
    "SkippedNames",
    "SpoolBatch",
    "SpoolPath",
    "State",
    "StoreError",
    "TaskKey",
    "WebHdfs",
    "add_name",
    "adopt",
    "attempts",
    "batches",
    "build_folder",
    "check_fence",
    "count_rows",
    "create_marker",
    "current_fence",
    "describe",
    "entries",
    "entry_of",
    "exists",
    "has_renames",
    "hdfs",
    "is_folder",
    "make_folder",
    "make_part",
    "message_key",
    "names_in",
    "numbered",
    "objects",
    "open_file",
    "parts",
    "path_for_spark",
    "path_to_uri",
    "pattern_for_spark",
    "prune",
    "read_document",
    "read_file",
    "read_message",
    "remove",
    "remove_by_prefix",
    "remove_folder",
    "remove_if_unused",
    "renew",
    "replay_id",
    "rows",
    "salvage",
    "seal",
    "seal_message",
    "secret_code",
    "spool",
    "stage",
    "sweep_references",
    "take_fence",
    "unfinished_batches",
    "uri_to_path",
    "verify",
    "walk",
    "was_split",
]
