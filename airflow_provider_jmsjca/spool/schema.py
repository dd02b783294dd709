"""The message schema: the columns of a segment as a Spark schema; `layout` has the Arrow schema."""

from __future__ import annotations

from typing import Final

FORMAT_VERSION: Final = 1
SCHEMA_VERSION: Final = 1
UNDECODABLE: Final = "undecodable"
REASON_PROPERTY: Final = "_JMSJCA_UndecodableReason"
ITEM_TYPE_PREFIX: Final = "body:"

# For `spark.read.schema(...)`: an empty batch has no file from which Spark could infer the schema.
MESSAGE_DDL: Final = (
    "message_id STRING, destination STRING, correlation_id STRING, reply_to STRING, type STRING, "
    "timestamp TIMESTAMP, expiration TIMESTAMP, received_at TIMESTAMP, priority TINYINT, persistent BOOLEAN, "
    "redelivered BOOLEAN, delivery_count INT, group_id STRING, group_seq INT, body_type STRING, body BINARY, "
    "content_type STRING, properties MAP<STRING, STRING>, property_types MAP<STRING, STRING>, "
    "batch_id STRING, segment INT, position INT"
)
