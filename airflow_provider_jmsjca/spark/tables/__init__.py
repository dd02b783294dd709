"""Table sinks, one module per format. If a batch is written twice, the table has its rows once.

`TableSink` is the protocol of sinks. `Batch.write` checks that the sink supports the `TableWrite`, then calls
the sink.
This folder may import `core`, `spool` and `errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spool.files import SpoolPath

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_jmsjca.spool.attempts import RejectsFile

BATCH_COLUMN: Final = "jms_batch_id"
"""The column of a table that names the batch of each row."""


UPSERT: Final = "upsert"


class Rejects(Protocol):
    """Messages that an attempt rejects."""

    @property
    def files(self) -> tuple[RejectsFile, ...]:
        """The rejects files sealed so far."""

    def refuse(self, refused: DataFrame) -> None:
        """Reject the messages of rows that a table refuses.

        When this returns, the rejects are durable. Call this before the commit that omits these rows.

        Args:
            refused: Columns `_jms`, a struct of `segment` and `position`, and `exception_message`.
        """

    def adopt(self, files: Sequence[RejectsFile], rows: DataFrame, stored: DataFrame | None) -> None:
        """Take over the outcome of an earlier attempt that has committed.

        The rejects of the earlier attempt become those of this attempt. If `stored` is given, this attempt's
        own rejects are added, except for messages that the commit stored. This attempt also rejects each
        message of `rows` that the commit didn't store and the earlier attempt didn't reject.

        Args:
            files: The files with the earlier attempt's rejects at its commit.
            rows: The rows of this attempt.
            stored: Messages that the commit stored, in a column `_jms`; `None` if the table doesn't show
                them.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAttempt:
    """The attempt that writes a batch.

    Attributes:
        batch_id: Name of the batch, as stored in the table.
        folder: The batch's folder, which has the fence numbers of all attempts.
        fence: Fence number of this attempt.
        rejects: The messages that this attempt rejects; `None` if it can't reject any.
        rejects_rows: Reject the messages of rows that the table refuses, and write the others. Otherwise a
            refused row fails the write. With `True`, the rows must have the column `_jms`.
        replaced: Names of further batches. With `append`, the rows of this batch replace their rows.
        note_change: Called with a description of each change of a column, before the change. The description
            is durable when the call returns.
    """

    batch_id: str
    folder: SpoolPath
    fence: int
    rejects: Rejects | None = None
    rejects_rows: bool = False
    replaced: tuple[str, ...] = ()
    note_change: Callable[[str], object] = str

    @property
    def batch_ids(self) -> tuple[str, ...]:
        """Names of the batches whose rows are replaced by those of this write: `batch_id` and `replaced`."""
        return (self.batch_id, *self.replaced)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWrite:
    """The arguments of a write to a table.

    Attributes:
        table: Path, URI or name of the table.
        mode: `append`, `overwrite` or `upsert`.
        partition_by: Columns to partition by.
        options: Options of Spark's writer, or with `jdbc` of its connection.
        cluster_by: Columns by which a new table is clustered.
        properties: Table properties of a new table.
        replaces: With `append` to `delta`, whether the rows of a later attempt replace those of an earlier
            one. If `False`, the first commit of a batch stands. The other formats always replace.
        keys: With `upsert`, the columns that identify a row.
        order_by: With `upsert`, the column by which the newer of two rows with the same keys is found.
            `None`: by the order of batches, and within a batch by the order in which the messages were
            received.
        delete_when: With `upsert`, a condition in SQL. A row for which it is true deletes the table's row
            with its keys.
        widens: Change columns of the table that are too narrow for the rows; see `columns.common_type`.
    """

    table: str
    mode: str = "append"
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    replaces: bool = False
    keys: tuple[str, ...] = ()
    order_by: str | None = None
    delete_when: str | None = None
    widens: bool = False


class TableSink(Protocol):
    """Writes batches to tables of one format."""

    @property
    def modes(self) -> Collection[str]:
        """The supported values of `mode`."""

    @property
    def writes_once(self) -> bool:
        """Whether a batch can write to a table only once; otherwise its last write replaces earlier ones."""

    @property
    def arguments(self) -> Collection[str]:
        """Names of the supported optional fields of `TableWrite`."""

    @property
    def reserved(self) -> Collection[str]:
        """Names, in lower case, of options that the sink sets itself and a user can't set."""

    def columns(self, df: DataFrame, write: TableWrite, attempt: TableAttempt) -> Mapping[str, str]:
        """Return the types of the table's columns by name; an empty mapping if the table doesn't exist.

        Types have Spark's names, such as `BIGINT`, if Spark has such a type.
        """

    def write(self, df: DataFrame, write: TableWrite, attempt: TableAttempt) -> int:
        """Write the rows of a batch and return how many rows of the batch the table has.

        Raises:
            ConfigurationError: The rows don't fit the table, or an argument is invalid. Nothing was written.
            FencedError: A newer attempt has begun.
            PoisonMessageError: The table refuses a row, and `attempt.rejects_rows` is `False`.
            SpoolError: A file can't be written.
        """


def check_write(name: str, sink: TableSink, write: TableWrite) -> None:
    """Refuse arguments that a format doesn't support.

    Args:
        name: Name of the format.
        sink: The sink of this format.
        write: The arguments.

    Raises:
        ConfigurationError: The format doesn't support an argument, or an argument contradicts the mode.
    """
    if write.mode not in sink.modes:
        raise ConfigurationError(
            f"write: mode {write.mode!r}: format {name} supports {', '.join(sorted(sink.modes))}"
        )
    for each in fields(write):
        if each.name in {"table", "mode", "replaces", *sink.arguments}:
            continue
        if getattr(write, each.name):
            raise ConfigurationError(f"write: {each.name}: not supported by format {name}")
    taken = sorted(name for name in write.options if name.lower() in sink.reserved)
    if taken:
        raise ConfigurationError(f"write: options: {taken[0]} is set by write itself; leave it out")
    if write.mode == UPSERT:
        if not write.keys:
            raise ConfigurationError("write: mode 'upsert': expected keys, the columns that identify a row")
    elif write.keys or write.order_by or write.delete_when:
        raise ConfigurationError(
            f"write: keys, order_by and delete_when belong to mode 'upsert', not to {write.mode!r}"
        )
