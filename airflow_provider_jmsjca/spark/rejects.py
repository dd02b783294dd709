"""Messages that a job rejected, with the reasons: written by the job, and read when dead letters are sent.

A file `rejects-<fence>-<number>.jsonl` has one JSON object for each message:
`{"segment": 0, "position": 17, "exception_class": "...", "exception_message": "..."}`.
Only the files named in `_DONE` are valid. Writing and reading need memory for the rejects of one segment
only.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca.core.masking import masked_text
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError, SpoolError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spark.tables.columns import ORIGIN, check_origin, without
from airflow_provider_jmsjca.spool.arrow import layout, pa
from airflow_provider_jmsjca.spool.attempts import Done, RejectsFile, check_fence, committing
from airflow_provider_jmsjca.spool.files import (
    Entry,
    SpoolPath,
    add_name,
    digest_of,
    exists,
    make_folder,
    open_file,
    remove_by_prefix,
    remove_folder,
    synchronize_folder,
    walk,
)
from airflow_provider_jmsjca.spool.manifest import Manifest, is_given_up, path_for_spark
from airflow_provider_jmsjca.spool.rows import table_to_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REJECT_COLUMNS: Final = (ORIGIN, "exception_class", "exception_message")
EXCEPTION_CLASS: Final = f"{PoisonMessageError.__module__}.{PoisonMessageError.__qualname__}"
_ASIDE: Final = "_rejects-"
_FOLDER_COLUMN: Final = "_jms_segment"
_FOREIGN: Final = -1
_MAPS: Final = ("properties", "property_types")
_NO_REASON: Final = "no reason given"
_LEFT_OUT: Final = "an earlier attempt stored the batch without this message, and left no reason"
_REJECTS_DDL: Final = "segment INT, position INT, exception_class STRING, exception_message STRING"
# The parts of a reason that differ between messages: the value, and its place in a list or map.
_PARTICULAR: Final = (
    (re.compile(r'(, (?:found the (?:string|element)|it begins with)) ".*\Z', re.DOTALL), r'\1 "…"'),
    (re.compile(r"(, found the (?:number|values)) .*\Z", re.DOTALL), r"\1 …"),
    (re.compile(r", line [0-9]+, column [0-9]+\Z"), ", line …, column …"),
    (re.compile(r"(the (?:union|enum) has no \w+|has a length of|found the byte) -?[0-9]+"), r"\1 …"),
    (re.compile(r", by [0-9]+ bytes?\Z"), ", by … bytes"),
    (re.compile(r"\[(?:[0-9]+|'[^']*')\]"), "[…]"),
)
_log = safe_logger(__name__)
_MOST_REASONS: Final = 1_000
OTHER_REASONS: Final = "other reasons"
_REJECT_FIELDS = {"segment": int, "position": int, "exception_class": str, "exception_message": str}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """One rejected message.

    Attributes:
        segment: Number of the message's segment.
        position: The message's row in the segment.
        exception_class: Qualified name of the exception's class, which the dead letter carries.
        exception_message: The reason, which the dead letter carries.
    """

    segment: int
    position: int
    exception_class: str
    exception_message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedMessage:
    """A rejected message as it was received, and the reason.

    Attributes:
        number: The message's index among all rejected messages of the batch, from 0.
    """

    number: int
    message: JmsMessage
    exception_class: str
    exception_message: str


class BatchRejects:
    """The messages that one attempt rejects.

    Args:
        manifest: The batch.
        fence: Fence number of the attempt.

    Attributes:
        files: The sealed files with valid rejects.
        refused: Messages that a table refused. Their rows must not be stored in another table either.
    """

    def __init__(self, manifest: Manifest, fence: int) -> None:
        self.files: tuple[RejectsFile, ...] = ()
        self.refused: list[DataFrame] = []
        self._manifest = manifest
        self._fence = fence
        self._sealed = 0
        self._stored: DataFrame | None = None

    @property
    def count(self) -> int:
        """Number of rejected messages."""
        return sum(file.rows for file in self.files)

    def add(self, df: DataFrame) -> None:
        """Reject messages, except for messages that an earlier attempt has committed to a table.

        Args:
            df: Rows with the columns of `REJECT_COLUMNS`. A message that is named twice is rejected once.

        Raises:
            ConfigurationError: A column is missing, or a row names no message of the batch.
            FencedError: A newer attempt has begun.
            SpoolError: The files can't be written, or another job uses the same fence number.
        """
        if self._stored is not None:
            df = without(df, self._stored)
        found = write_rejects(df, self._manifest, self._fence, self.files, number=self._sealed)
        self._sealed += len(found)
        self.files += found

    def refuse(self, refused: DataFrame) -> None:
        """Reject the messages whose rows a table refuses; see `tables.Rejects`."""
        self.refused.append(refused)
        self.add(refused.selectExpr("*", f"'{EXCEPTION_CLASS}' AS exception_class"))

    def adopt(self, files: Sequence[RejectsFile], rows: DataFrame, stored: DataFrame | None) -> None:
        """Take over the outcome of an earlier attempt; see `tables.Rejects`."""
        own, self._stored = self.files, stored
        self.files = tuple(file for file in files if _is_sound(self._manifest.folder, file))
        if stored is None and len(self.files) == len(files):
            return
        if own:
            paths = [path_for_spark(self._manifest.folder / file.file) for file in own]
            found = rows.sparkSession.read.schema(_REJECTS_DDL).json(paths)
            self.add(found.selectExpr(f"struct(segment, position) AS {ORIGIN}", *REJECT_COLUMNS[1:]))
        if stored is None:
            return
        self.add(
            rows.selectExpr(
                f"struct({ORIGIN}.segment, {ORIGIN}.position) AS {ORIGIN}",
                f"'{EXCEPTION_CLASS}' AS exception_class",
                f"'{_LEFT_OUT}' AS exception_message",
            )
        )


def rejected_rows(
    messages: DataFrame, manifest: Manifest, files: Sequence[RejectsFile], *, as_text: bool
) -> DataFrame:
    """Return rejected messages as rows with headers, properties and body, then the reason, and `_jms`.

    Args:
        messages: The messages of the batch, with `_jms`.
        manifest: The batch.
        files: The files with the rejects; no message is in two of them.
        as_text: Return properties as JSON text instead of maps.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    spark = messages.sparkSession
    paths = [path_for_spark(manifest.folder / file.file) for file in files]
    found = spark.read.schema(_REJECTS_DDL).json(paths) if paths else spark.createDataFrame([], _REJECTS_DDL)
    kept = (name for name in messages.columns if name not in {ORIGIN, "batch_id", "segment", "position"})
    columns = (f"to_json({name}) AS {name}" if as_text and name in _MAPS else name for name in kept)
    joined = messages.join(sql.broadcast(found), ["segment", "position"])
    return joined.selectExpr(*columns, *REJECT_COLUMNS[1:], ORIGIN)


def write_rejects(
    df: DataFrame, manifest: Manifest, fence: int, before: Sequence[RejectsFile] = (), *, number: int = 0
) -> tuple[RejectsFile, ...]:
    """Write files of rejects in Spark's executors, and seal the files.

    Guarantee: the driver reads none of the rows, so its memory doesn't depend on their number. A superseded
    attempt seals nothing.

    Args:
        df: Rows with the columns of `REJECT_COLUMNS`. A message that is named twice is written once.
        manifest: The batch.
        fence: Fence number of the attempt.
        before: The files with the rejects so far; messages in them aren't written again.
        number: Number of files that this attempt has sealed.

    Raises:
        ConfigurationError: A column is missing, or a row names no message of the batch.
        FencedError: A newer attempt has begun.
        SpoolError: The files can't be written, or another job uses the same fence number.
    """
    missing = [name for name in REJECT_COLUMNS if name not in df.columns]
    if missing:
        raise ConfigurationError(
            f"reject: expected the columns {', '.join(REJECT_COLUMNS)}; missing: {', '.join(missing)}. "
            f"The rows of `messages`, `json` and `try_map` have {ORIGIN}: which message they are from"
        )
    check_origin("reject", df)
    folder = manifest.folder
    if not df.count():  # most batches have no rejects, and need no shuffle and no commit
        check_fence(folder, fence)
        return ()
    aside = folder / f"{_ASIDE}{uuid.uuid4().hex}"
    try:
        with committing(folder):
            check_fence(folder, fence)
            remove_by_prefix(folder, _ASIDE)
            make_folder(aside)
        try:
            _write_aside(df, manifest, aside / "parts", before)
            written = [file.path for file in _parts(aside / "parts") if file.size]
            with committing(folder):
                check_fence(folder, fence)
                return tuple(
                    _seal(part, folder / f"rejects-{fence:06d}-{number:06d}.jsonl")
                    for number, part in enumerate(sorted(written, key=_segment_of), start=number)
                )
        finally:
            remove_folder(aside)  # a newer attempt may have removed it
            synchronize_folder(folder)
    except OSError as error:
        raise SpoolError(f"{folder}: rejects can't be written: {error.strerror or error}") from error


def _write_aside(df: DataFrame, manifest: Manifest, place: SpoolPath, before: Sequence[RejectsFile]) -> None:
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    rows = [0] * (1 + max((segment.number for segment in manifest.segments), default=0))
    for segment in manifest.segments:
        rows[segment.number] = segment.rows
    is_message = f"position >= 0 AND position < get(array({', '.join(map(str, rows))}), segment)"
    found = df.select(
        sql.expr(f"try_cast({ORIGIN}.segment AS INT)").alias("segment"),
        sql.expr(f"try_cast({ORIGIN}.position AS INT)").alias("position"),
        sql.struct(
            sql.coalesce(sql.col("exception_class").cast("string"), sql.lit(EXCEPTION_CLASS)).alias("class"),
            sql.coalesce(sql.col("exception_message").cast("string"), sql.lit(_NO_REASON)).alias("message"),
        ).alias("why"),
    )
    if before:
        earlier = df.sparkSession.read.schema("segment INT, position INT").json(
            [path_for_spark(manifest.folder / file.file) for file in before]
        )
        found = found.join(earlier, ["segment", "position"], "left_anti")
    (
        found.repartition("segment")
        .groupBy("segment", "position")
        .agg(sql.min("why").alias("why"))
        .sortWithinPartitions("segment", "position")
        .select(
            "segment",
            "position",
            sql.col("why.class").alias("exception_class"),
            sql.col("why.message").alias("exception_message"),
            sql.expr(f"CASE WHEN {is_message} THEN segment ELSE {_FOREIGN} END").alias(_FOLDER_COLUMN),
        )
        .write.partitionBy(_FOLDER_COLUMN)
        .json(path_for_spark(place), compression="none", lineSep="\n", ignoreNullFields=False)
    )
    for part, *_ in _parts(place):
        if part.parent.name != f"{_FOLDER_COLUMN}={_FOREIGN}":
            continue
        with open_file(part) as lines:
            row = json.loads(next(lines))
        raise ConfigurationError(
            f"reject: segment {row['segment']} position {row['position']} is not a message of batch "
            f"{manifest.batch_id}"
        )


def _parts(folder: SpoolPath) -> list[Entry]:
    return [file for file in walk(folder) if file.path.name.endswith(".json")]


def _segment_of(part: SpoolPath) -> tuple[int, str]:
    return int(part.parent.name.removeprefix(f"{_FOLDER_COLUMN}=")), part.name


def _seal(part: SpoolPath, path: SpoolPath) -> RejectsFile:
    """Move a file that an executor has written to its final name in the batch's folder, and describe it."""
    rows, digest = 0, hashlib.sha256()
    with open_file(part) as file:
        for line in file:
            digest.update(line)
            rows += 1
    if not add_name(part, path):
        raise SpoolError(f"{path}: already exists: two jobs run as the same attempt; end one of them")
    return RejectsFile(file=path.name, rows=rows, sha256=digest.hexdigest())


def rejected_messages(manifest: Manifest) -> Iterator[RejectedMessage]:
    """Yield the rejected messages of a batch that is done, in the order of their receipt.

    This only reads files, so it can be repeated until every message has been dead-lettered. If a segment was
    given up (`airflow jms spool salvage`), its messages are left out after a warning. The
    `RejectedMessage.number` of the other messages doesn't change.

    Raises:
        SpoolError: The batch isn't done, or a file is missing or damaged.
    """
    for number, wanted, before in _by_segment(manifest):
        yield from _messages(manifest, number, wanted, before)


def numbered_rejects(manifest: Manifest) -> Iterator[tuple[int, Reject]]:
    """Yield each reject of a batch that is done with its `RejectedMessage.number`; no message is read.

    Raises:
        SpoolError: The batch isn't done, or a file is missing or damaged.
    """
    for _, wanted, before in _by_segment(manifest):
        for place, position in enumerate(sorted(wanted), start=before):
            yield place, wanted[position]


def rejected_message(manifest: Manifest, segment: int, position: int) -> RejectedMessage | None:
    """Return a rejected message of a batch that is done.

    Returns:
        `None` if the row was not rejected, or if its segment was given up (`airflow jms spool salvage`).

    Raises:
        SpoolError: The batch isn't done, or a file is missing or damaged.
    """
    for number, wanted, before in _by_segment(manifest):
        if number == segment and position in wanted:
            place = before + sorted(wanted).index(position)
            return next(_messages(manifest, number, {position: wanted[position]}, place), None)
    return None


def _by_segment(manifest: Manifest) -> Iterator[tuple[int, dict[int, Reject], int]]:
    """Yield each segment's number, its rejects by position, and the number of rejects in earlier segments."""
    done = Done.read(manifest.folder)
    if done is None:
        raise SpoolError(f"{manifest.folder}: no _DONE: the job hasn't finished, its rejects don't count yet")
    if done.batch_id != manifest.batch_id:
        raise SpoolError(f"{manifest.folder}: _DONE is that of batch {done.batch_id!r}")
    files: dict[int, list[RejectsFile]] = defaultdict(list)
    for file in done.rejects:
        for number in _verified(manifest.folder, file):
            files[number].append(file)
    before = 0
    for number in sorted(files):
        wanted: dict[int, Reject] = {}
        for file in files[number]:
            for reject in _read(manifest.folder, file):
                if reject.segment == number:
                    wanted.setdefault(reject.position, reject)
        yield number, wanted, before
        before += len(wanted)


def rejected_positions(manifest: Manifest) -> dict[int, list[int]]:
    """Return the sorted positions of the rejected messages of a batch that is done, by segment number.

    Messages of a segment that was given up (`airflow jms spool salvage`) are left out.

    Raises:
        SpoolError: The batch isn't done, or a file is missing or damaged.
    """
    done = Done.read(manifest.folder)
    if done is None:
        raise SpoolError(f"{manifest.folder}: no _DONE: the job hasn't finished, its rejects don't count yet")
    found: dict[int, set[int]] = {segment.number: set() for segment in manifest.segments}
    for file in done.rejects:
        _verified(manifest.folder, file)
        for reject in _read(manifest.folder, file):
            if reject.segment in found:
                found[reject.segment].add(reject.position)
    return {segment: sorted(positions) for segment, positions in found.items() if positions}


def reject_reasons(manifest: Manifest, *, limit: int = 10) -> dict[str, int]:
    """Return how many messages of a batch were rejected for each reason, the most frequent reason first.

    Values of messages are left out of the reasons, so that reasons of one kind are counted together.
    Passwords are masked, because logs and XComs show the reasons, and a reason may be a user's own text.
    For a pruned batch the result is empty.

    Args:
        manifest: The batch.
        limit: Maximum number of reasons; the others are counted as `OTHER_REASONS`.

    Raises:
        SpoolError: A file can't be read.
    """
    done, found = Done.read(manifest.folder), Counter[str]()
    for file in () if done is None else done.rejects:
        if not exists(manifest.folder / file.file):
            continue
        for reject in _read(manifest.folder, file):
            reason = general_reason(reject.exception_message)
            found[reason if reason in found or len(found) < _MOST_REASONS else OTHER_REASONS] += 1
    named = [each for each in found.most_common() if each[0] != OTHER_REASONS]
    rest = found[OTHER_REASONS] + sum(count for _, count in named[limit:])
    return dict(named[:limit]) | ({OTHER_REASONS: rest} if rest else {})


def general_reason(reason: str) -> str:
    """Return a reason on one line, without values that differ between messages, and with masked passwords."""
    for pattern, shown in _PARTICULAR:
        reason = pattern.sub(shown, reason)
    return masked_text(" ".join(reason.split()))


def _verified(folder: SpoolPath, file: RejectsFile) -> set[int]:
    """Verify the digest of a file, and return the numbers of the segments in it."""
    path = folder / file.file
    try:
        with open_file(path) as content:
            digest = digest_of(content)
    except OSError as error:
        raise SpoolError(f"{path}: can't be read: {error.strerror or error}") from error
    if digest != file.sha256:
        raise SpoolError(f"{path}: expected sha256 {file.sha256}, found {digest}")
    return {reject.segment for reject in _read(folder, file)}


def _is_sound(folder: SpoolPath, file: RejectsFile) -> bool:
    try:
        _verified(folder, file)
    except SpoolError as error:
        _log.warning("The rejects of an earlier attempt can't be used; determining them again: %s", error)
        return False
    return True


def _read(folder: SpoolPath, file: RejectsFile) -> Iterator[Reject]:
    path = folder / file.file
    try:
        with open_file(path) as content:
            for line in content:
                yield _reject(json.loads(line))
    except OSError as error:
        raise SpoolError(f"{path}: can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise SpoolError(f"{path}: no file of rejects: {error}") from error


def _reject(found: object) -> Reject:
    if not isinstance(found, dict) or set(found) != set(_REJECT_FIELDS):
        raise ValueError(f"expected an object with {', '.join(_REJECT_FIELDS)}, found {found!r:.200}")
    for name, kind in _REJECT_FIELDS.items():
        if type(found[name]) is not kind:
            raise ValueError(f"{name}: expected {kind.__name__}, found {found[name]!r:.200}")
    return Reject(**found)


def _messages(
    manifest: Manifest, number: int, wanted: dict[int, Reject], before: int
) -> Iterator[RejectedMessage]:
    segment = next((each for each in manifest.segments if each.number == number), None)
    if segment is None:
        if is_given_up(manifest.folder, number):
            _log.warning(
                "%s: %d rejected messages can't be sent as dead letters: they were in segment %d, which was "
                "damaged and given up",
                manifest.folder,
                len(wanted),
                number,
            )
            return
        raise SpoolError(f"{manifest.folder}: a reject names segment {number}, which the batch doesn't have")
    rows = segment.rows
    outside = [position for position in wanted if not 0 <= position < rows]
    if outside:
        raise SpoolError(f"{segment.file}: a reject names row {outside[0]}, the segment has {rows}")
    positions = sorted(wanted)
    try:
        with (
            open_file(manifest.folder / segment.file) as plain,
            layout.SegmentReader(plain) as file,
        ):
            table = file.read().take(pa.array(positions, pa.int64()))
    except (pa.ArrowException, OSError) as error:
        raise SpoolError(f"{manifest.folder / segment.file}: can't be read: {error}") from error
    for place, stored in enumerate(table_to_messages(table), start=before):
        reject = wanted[stored.position]
        yield RejectedMessage(
            number=place,
            message=stored.message,
            exception_class=reject.exception_class,
            exception_message=reject.exception_message,
        )
