"""Sends rows as messages to a broker.

All rows of a partition are checked before its first message is sent. The effect of a repeated task depends on
the broker:

- A broker that drops duplicates: each message has an id derived from write, partition and row, so a repeated
  task adds nothing.
- A broker with transactions: a partition is sent in one transaction. It is sent twice only if its task is
  repeated after the commit.
- Any other broker: a repeated task sends its whole partition again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import BodyKind
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError, SpoolError
from airflow_provider_jmsjca.spark.data_sources.broker_options import BROKER_OPTIONS, BrokerOptions
from airflow_provider_jmsjca.spark.data_sources.given_options import GivenOptions
from airflow_provider_jmsjca.spool.layout import MESSAGE_SCHEMA
from airflow_provider_jmsjca.spool.rows import table_to_messages
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, Outgoing, check_sendable

_NAME = "jms"
_OPTIONS = (*BROKER_OPTIONS, "destination", "writeId", "path", "checkpointLocation")
_DEFAULTS: Mapping[str, object] = {
    "priority": 4,
    "persistent": True,
    "redelivered": False,
    "segment": 0,
    "position": 0,
}


@dataclass
class SentRows(WriterCommitMessage):
    """Number of messages that were sent for a partition."""

    count: int


class Sender:
    """Sends partitions of a DataFrame to the broker that the options name.

    Args:
        given: The options.
        schema: The columns.

    Raises:
        ConfigurationError: An option or a column is wrong; nothing was sent.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = GivenOptions(_NAME, given, _OPTIONS)
        self._broker = BrokerOptions(_NAME, options)
        named = options.text("destination")
        self._destination = None if named is None else Destination.parse(named)
        self.write_id = options.text("writeId")
        types = {field.name: field.dataType.typeName() for field in schema}
        faults = [
            f"{_NAME}: a message has no column {name!r}; expected some of {', '.join(MESSAGE_SCHEMA.names)}"
            for name in types
            if name not in MESSAGE_SCHEMA.names
        ]
        if types.get("body") not in {"string", "binary"}:
            faults.append(
                f"{_NAME}: column 'body' is {types.get('body', 'missing')}; expected STRING or BINARY"
            )
        if self._destination is None and "destination" not in types:
            faults.append(f"{_NAME}: expected the option 'destination', or a column of this name")
        if faults:
            raise ConfigurationError(faults)
        self._kind = BodyKind.TEXT if types["body"] == "string" else BodyKind.BYTES

    def send(self, batches: Iterable[pa.RecordBatch], write_id: str) -> SentRows:
        """Send the rows of this task's partition.

        Args:
            batches: The rows.
            write_id: Identifies the write in the messages' deduplication ids; equal for a repeated task.

        Raises:
            ConfigurationError: A row is no valid message; nothing of the partition was sent.
            JmsError: The broker refused a message, or the connection was lost.
        """
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        outgoing = list(self._outgoing(batches, partition))
        if outgoing:
            connection = connect(self._broker.settings())
            try:
                self._send(connection, outgoing, f"{write_id}/{partition}")
            finally:
                connection.close()
        return SentRows(len(outgoing))

    @staticmethod
    def _send(connection: Connection, outgoing: Sequence[Outgoing], prefix: str) -> None:
        for each in outgoing:
            check_sendable(connection, each)
        if connection.capabilities.deduplicating_send:
            # Without a transaction, because a duplicate would roll back the whole of it.
            for row, each in enumerate(outgoing):
                each.deduplication_id = f"{prefix}/{row}"
            connection.send(outgoing)
            return
        unit = connection.unit()
        for each in outgoing:
            unit.send(each)
        unit.commit()

    def _outgoing(self, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[Outgoing]:
        row = 0
        for batch in batches:
            messages = table_to_messages(self._completed(batch))
            for _ in range(batch.num_rows):
                place = f"{_NAME}: partition {partition}, row {row}"
                try:
                    found = next(messages)
                except (SpoolError, ConfigurationError, ValueError, TypeError, KeyError) as error:
                    raise ConfigurationError(f"{place}: no message: {error}") from error
                if found.undecodable is not None:
                    raise ConfigurationError(f"{place}: the message is undecodable: {found.undecodable}")
                destination = self._destination or found.message.destination
                if destination is None:
                    raise ConfigurationError(f"{place}: column 'destination' is NULL")
                yield Outgoing(destination=destination, message=found.message)
                row += 1

    def _completed(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the rows with every column of the message schema; missing values get defaults."""
        columns = []
        for field in MESSAGE_SCHEMA:
            index = batch.schema.get_field_index(field.name)
            column = pa.nulls(batch.num_rows, field.type) if index < 0 else batch.column(index)
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                raise ConfigurationError(f"{_NAME}: column {field.name!r}: {error}") from error
            if field.name in _DEFAULTS:
                column = pc.fill_null(column, pa.scalar(_DEFAULTS[field.name], field.type))
            columns.append(column)
        table = pa.Table.from_arrays(columns, schema=MESSAGE_SCHEMA)
        kinds = table.column("body_type")
        usual = pc.if_else(pc.is_null(table.column("body")), str(BodyKind.EMPTY), str(self._kind))
        index = table.schema.get_field_index("body_type")
        return table.set_column(index, "body_type", pc.coalesce(kinds, usual))


class JmsWriter(DataSourceArrowWriter):
    """Sends the rows of a DataFrame."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        # Created on the driver, so that a repeated task has the same id.
        self._write_id = sender.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentRows:
        """Send a partition."""
        return self._sender.send(iterator, self._write_id)


class JmsStreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of each micro-batch. Ids of messages are derived from the micro-batch's number."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentRows:
        """Send a partition.

        Raises:
            JmsError: Spark doesn't provide the number of the micro-batch.
        """
        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        number = context and context.getLocalProperty("streaming.sql.batchId")
        if query is None or number is None:
            raise JmsError(f"{_NAME}: Spark doesn't report the micro-batch of a task")
        return self._sender.send(iterator, f"{self._sender.write_id or query}/{number}")
