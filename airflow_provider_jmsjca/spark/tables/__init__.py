"""Table sinks, one module per format. Writing a batch twice leaves one copy.

`TableSink` is the port. `Batch.write` checks that the sink supports the `TableWrite`, then calls the sink.
May import `core`, `spool` and `errors`.
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

        When this returns, the rejects are durable. Call it before the commit that leaves these rows out.

        Args:
            refused: Columns `_jms`, a struct of `segment` and `position`, and `exception_message`.
        """

    def adopt(self, files: Sequence[RejectsFile], rows: DataFrame, stored: DataFrame | None) -> None:
        """Take over the outcome of an earlier attempt that has committed.

        The rejects of that attempt count. If `stored` is given, rejects of this attempt are added unless they
        were stored. A message that this attempt would store, and that was neither stored nor rejected, is
        rejected.

        Args:
            files: The rejects files that counted at that commit.
            rows: The rows of this attempt.
            stored: Messages that the commit stored: column `_jms`. `None` if the table doesn't tell.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAttempt:
    """The attempt that writes.

    Attributes:
        batch_id: Names the batch in the table.
        folder: The batch's folder, for the fence.
        fence: This attempt's number.
        rejects: The messages that this attempt rejects; `None` if it can't reject any.
        rejects_rows: Reject the messages of rows that the table refuses, and write the others. Otherwise a
            refused row fails the write. The rows must name their messages.
        replaced: Names of further batches: with `append`, the rows of this one take the place of theirs.
        note_change: Called with a description of each change of a column, before it is made. It returns when
            the description is durable.
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
        """The batches whose rows those of this write replace: its own and `replaced`."""
        return (self.batch_id, *self.replaced)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWrite:
    """The table to write to, and how.

    Attributes:
        table: Path, URI or name of the table.
        mode: `append`, `overwrite` or `upsert`.
        partition_by: Columns to partition by.
        options: Options of Spark's writer, or with `jdbc` of its connection.
        cluster_by: Columns by which a new table is clustered.
        properties: Table properties of a new table.
        replaces: With `append`, a later attempt replaces the batch's rows of an earlier one, in every format.
        keys: With `upsert`, the columns that identify a row.
        order_by: With `upsert`, the column that tells which of two rows of a key is newer. `None` takes the
            order of batches, and within a batch the order in which the messages were received.
        delete_when: With `upsert`, a condition in SQL: such a row deletes the row of its key.
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
    """A table format."""

    @property
    def modes(self) -> Collection[str]:
        """The values of `mode` that it supports."""

    @property
    def writes_once(self) -> bool:
        """Whether a batch can write to a table once only; otherwise its last write counts."""

    @property
    def arguments(self) -> Collection[str]:
        """The further fields of `TableWrite` that it supports."""

    @property
    def reserved(self) -> Collection[str]:
        """Options in lower case that it sets by itself."""

    def columns(self, df: DataFrame, write: TableWrite, attempt: TableAttempt) -> Mapping[str, str]:
        """Return the types of the table's columns, by their names; empty for a table that isn't there.

        Types with a name of Spark's have this name, such as `BIGINT`.
        """

    def write(self, df: DataFrame, write: TableWrite, attempt: TableAttempt) -> int:
        """Write the rows of a batch and return how many rows of the batch the table has.

        Raises:
            ConfigurationError: The table can't take the rows, or an argument is wrong. Nothing was written.
            FencedError: A newer attempt has begun.
            PoisonMessageError: The table refuses a row, and `attempt.rejects_rows` is off.
            SpoolError: The operating system refused.
        """


def check_write(name: str, sink: TableSink, write: TableWrite) -> None:
    """Refuse arguments that a format doesn't support.

    Args:
        name: The format.
        sink: The sink of this format.
        write: The arguments.

    Raises:
        ConfigurationError: The first argument that the format doesn't support.
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
