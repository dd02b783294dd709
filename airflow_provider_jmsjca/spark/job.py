"""What a PySpark script needs to work on a batch.

    from pyspark.sql import SparkSession
    from airflow_provider_jmsjca.spark.job import Batch

    with Batch.from_args() as batch:
        spark = SparkSession.builder.getOrCreate()
        flights = batch.json(batch.messages(spark), "carrier STRING NOT NULL, dep_delay DOUBLE NOT NULL")
        batch.write(flights.rows, "/data/flights")
        batch.reject(flights.rejects)

The contract with whoever submits it (`JmsToSparkSubmitOperator`):

| argument | meaning |
|---|---|
| `--manifest` | `file:` URI or absolute path of `manifest.json`, on storage that driver and executors see |
| `--batch-id` | as in the manifest: a mix-up is an error |
| `--fence` | the number `attempts.take_fence` gave to this attempt |

Other arguments are the script's own: `Batch.arguments`. The submitter calls `take_fence(manifest.folder)`
right before each submission, reads the counts from `Done.read(manifest.folder)` when the exit code is 0, and
passes what `rejects.rejected_messages(manifest)` yields to the dead-letter destination. Exit codes: 0 the
batch is done, now or before; 65 a file of the batch is missing, damaged or foreign; 75 a newer attempt has
taken over; 78 the script asks for what can't be done; any other: the script failed. A script that leaves the
`with` block by an exception of its own, or by `sys.exit`, hasn't done the batch: look for `_DONE` as well.

The one line that says what is wrong goes to standard error; `spark-submit` in client mode hands it on as its
own standard output, among whatever else the driver says.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, Self

from airflow_provider_jmsjca.errors import ConfigurationError, FencedError, SpoolError
from airflow_provider_jmsjca.spark.attempts import Done, RejectsFile, check_fence, committing
from airflow_provider_jmsjca.spark.manifest import Manifest
from airflow_provider_jmsjca.spark.mapping import REJECT_COLUMNS, Mapped, map_json
from airflow_provider_jmsjca.spark.rejects import Reject, write_rejects
from airflow_provider_jmsjca.spark.schema import MESSAGE_DDL
from airflow_provider_jmsjca.spark.tables import Attempt, local_path, replace_by_overwrite, replace_by_rename

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

EXIT_SPOOL: Final = 65
EXIT_FENCED: Final = 75
EXIT_CONFIGURATION: Final = 78

_log = logging.getLogger(__name__)


class Batch:
    """A verified batch, for one attempt at it. Leaving the `with` block without exception makes it done.

    Guarantee: a job that dies anywhere leaves no `_DONE`, and run again it leaves one copy in each table. One
    that was overtaken by a newer attempt commits nothing.

    Attributes:
        manifest: What belongs to the batch.
        fence: The number of this attempt.
        arguments: Arguments of the script that aren't ours.
    """

    def __init__(self, manifest: Manifest, fence: int, arguments: Sequence[str] = ()) -> None:
        """Verify the batch.

        Raises:
            SpoolError: A file is missing, damaged or foreign; the text names it.
            FencedError: This is not the newest attempt.
        """
        check_fence(manifest.folder, fence)
        manifest.verify()
        self.manifest = manifest
        self.fence = fence
        self.arguments = tuple(arguments)
        self._stored: dict[str, int] = {}
        self._rejected: set[tuple[int, int]] = set()
        self._rejects: list[RejectsFile] = []

    @classmethod
    def from_args(cls, arguments: Sequence[str] | None = None) -> Self:
        """Return the batch that the command line names.

        Leaves the process (`SystemExit`) with code 0 if the batch is done already, 65 if a file is missing,
        damaged or foreign, 75 if a newer attempt has begun, after one line on standard error.

        Args:
            arguments: Without the script's name; `None` means the command line's.
        """
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--manifest", required=True)
        parser.add_argument("--batch-id", required=True)
        parser.add_argument("--fence", required=True, type=int)
        known, rest = parser.parse_known_args(arguments)
        try:
            manifest = Manifest.read(known.manifest)
            _check_name(manifest, known.batch_id)
            if Done.read(manifest.folder) is not None:
                sys.stderr.write(f"batch {manifest.batch_id} is done already\n")
                raise SystemExit(0)
            return cls(manifest, known.fence, rest)
        except SpoolError as error:
            _leave(error)

    @property
    def batch_id(self) -> str:
        """The batch's name."""
        return self.manifest.batch_id

    def messages(self, spark: SparkSession) -> DataFrame:
        """Return the messages, with the columns of the message schema (`schema.MESSAGE_DDL`)."""
        paths = [path.as_uri() for path in self.manifest.segment_paths()]
        if not paths:
            return spark.createDataFrame([], MESSAGE_DDL)
        return spark.read.schema(MESSAGE_DDL).parquet(*paths)

    def json(self, messages: DataFrame, schema: StructType | str) -> Mapped:
        """Read the bodies as JSON objects; see `mapping.map_json`. Hand its `rejects` to `reject`."""
        return map_json(messages, schema)

    def write(self, df: DataFrame, table: str, *, partition_by: Sequence[str] = ()) -> int:
        """Put rows into a Parquet table, in the place of what this batch has there.

        Guarantee: as `tables.replace_by_rename` on file systems of this machine (absolute path or `file:`
        URI), as `tables.replace_by_overwrite` elsewhere. A second call for the same table replaces the first.

        Args:
            df: The rows. A column `batch_id` is replaced by the table's own.
            table: Absolute path or URI of the table's folder.
            partition_by: Further columns to partition by.

        Returns:
            How many rows were written.

        Raises:
            FencedError: A newer attempt has begun.
            SpoolError: The operating system refused.
            ConfigurationError: The path is neither absolute nor a URI.
        """
        path = local_path(df, table)
        attempt = Attempt(batch_id=self.batch_id, folder=self.manifest.folder, fence=self.fence)
        if path is None:
            count = replace_by_overwrite(df, table, attempt, partition_by)
        else:
            count = replace_by_rename(df, path, attempt, partition_by)
        self._stored[table] = count
        return count

    def reject(self, df: DataFrame) -> int:
        """Turn messages away: once the batch is done they go to the dead-letter destination.

        Args:
            df: Columns `segment`, `position` (which message), `exception_class` and `exception_message`
                (why; J162, J163). A message that is named twice is turned away once, for the first reason.

        Returns:
            How many messages have been turned away so far.

        Raises:
            ConfigurationError: A column is missing, or a row names no message of the batch.
            SpoolError: The file can't be written.
        """
        missing = [name for name in REJECT_COLUMNS if name not in df.columns]
        if missing:
            raise ConfigurationError(
                f"reject: expected the columns {', '.join(REJECT_COLUMNS)}; missing: {', '.join(missing)}"
            )
        rejects = []
        for row in df.select(*REJECT_COLUMNS).toLocalIterator():
            reject = Reject(**row.asDict())
            self._check(reject)
            place = (reject.segment, reject.position)
            if place not in self._rejected:
                self._rejected.add(place)
                rejects.append(reject)
        if rejects:
            number = len(self._rejects)
            self._rejects.append(write_rejects(self.manifest.folder, self.fence, number, rejects))
        return len(self._rejected)

    def _check(self, reject: Reject) -> None:
        segments = self.manifest.segments
        if (
            reject.segment is None
            or reject.position is None
            or not 0 <= reject.segment < len(segments)
            or not 0 <= reject.position < segments[reject.segment].rows
        ):
            raise ConfigurationError(
                f"reject: segment {reject.segment} position {reject.position} is no message of batch "
                f"{self.batch_id}"
            )

    def check_fence(self) -> None:
        """Refuse to go on if a newer attempt has begun; call it before you commit anywhere by yourself.

        Raises:
            FencedError: A newer attempt has begun.
        """
        check_fence(self.manifest.folder, self.fence)

    def finish(self) -> Done:
        """Seal `_DONE` with the counts: the batch is done, for every later attempt too.

        Raises:
            FencedError: A newer attempt has begun, or another one did it.
            SpoolError: The operating system refused.
        """
        folder = self.manifest.folder
        done = Done(
            batch_id=self.batch_id,
            fence=self.fence,
            rows=self.manifest.rows,
            stored=dict(self._stored),
            rejected=len(self._rejected),
            rejects=tuple(self._rejects),
            finished=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        with committing(folder):
            check_fence(folder, self.fence)
            if not done.create(folder):
                raise FencedError(f"{folder}: another attempt has finished this batch")
        _log.info(
            "Batch %s: %d rows, stored %s, rejected %d", done.batch_id, done.rows, done.stored, done.rejected
        )
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish if all went well; leave the process with one line where spool, fence or schema say no."""
        try:
            if isinstance(error, SpoolError | ConfigurationError):
                raise error
            if error is None:
                self.finish()
        except (SpoolError, ConfigurationError) as fault:
            _leave(fault)


def _check_name(manifest: Manifest, batch_id: str) -> None:
    if manifest.batch_id != batch_id:
        raise SpoolError(f"{manifest.path}: expected batch {batch_id!r}, found {manifest.batch_id!r}")


def _leave(error: SpoolError | ConfigurationError) -> NoReturn:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    match error:
        case ConfigurationError():
            code = EXIT_CONFIGURATION
        case FencedError():
            code = EXIT_FENCED
        case _:
            code = EXIT_SPOOL
    raise SystemExit(code) from error
