"""Runs a script on a batch and, if it fails because of its data, on ever smaller parts of the batch.

    spark-submit bisecting.py --application job.py --splits 64 --manifest ... --batch-id ... --fence ... [...]

The script runs unchanged, in this Spark driver, once for each part; its arguments name the part like a batch.
The rows of a part are stored under the part's name. A message that fails alone is rejected with the
exception. Once all parts are processed, the batch is done, with the rows and rejects of its parts.

Guarantee: every message is stored once or rejected once. After a crash at any point, the next attempt
continues with the parts that aren't done.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import runpy
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from airflow_provider_jmsjca.errors import ConfigurationError, FencedError, SpoolError
from airflow_provider_jmsjca.spark.job import check_batch_name, leave
from airflow_provider_jmsjca.spool.attempts import (
    DONE,
    Done,
    RejectsFile,
    check_fence,
    committing,
    current_fence,
    evolutions,
)
from airflow_provider_jmsjca.spool.files import SpoolPath, numbered, open_file, seal, stage
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.splits import (
    DataFailure,
    RowRange,
    all_rows,
    make_part,
    part_folder,
    parts,
    position_in_batch,
    was_split,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job.

    Args:
        arguments: Arguments without the script's name; `None` means those of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__, add_help=False, allow_abbrev=False)
    parser.add_argument("--application", required=True)
    parser.add_argument("--splits", required=True, type=int)
    parser.add_argument("--manifest", required=True)
    parser.add_argument("--batch-id", required=True)
    parser.add_argument("--fence", required=True, type=int)
    asked, rest = parser.parse_known_args(arguments)
    try:
        manifest = Manifest.read(asked.manifest)
        check_batch_name(manifest, asked.batch_id)
        if Done.read(manifest.folder) is not None:
            _say(f"batch {manifest.batch_id} is done already")
            return
        check_fence(manifest.folder, asked.fence)
        manifest.verify()
        _Bisection(manifest, asked.fence, asked.application, rest, asked.splits).run()
    except (SpoolError, ConfigurationError) as error:
        leave(error)


class _Bisection:
    """One attempt at a batch.

    Args:
        manifest: The batch.
        fence: Fence number of this attempt; its attempts at parts have the same number.
        application: Path of the script.
        rest: Arguments of the script.
        limit: Maximum number of splits over all attempts.
    """

    def __init__(
        self, manifest: Manifest, fence: int, application: str, rest: Sequence[str], limit: int
    ) -> None:
        self._manifest = manifest
        self._fence = fence
        self._application = application
        self._rest = rest
        self._limit = limit
        self._splits = len(parts(manifest.folder)) // 2
        self._alone: dict[RowRange, DataFailure] = {}
        self._done: list[tuple[RowRange, SpoolPath]] = []

    def run(self) -> None:
        whole = all_rows(self._manifest)
        self._settle(whole, inferred=False)
        if not self._done or self._done[0][0] != whole:
            self._finish()

    def _settle(self, rows: RowRange, *, inferred: bool) -> bool:
        """Store as much of a part as possible; return whether the whole part was stored.

        Args:
            rows: Rows of the part.
            inferred: Whether the part must fail: the script failed on the part from which it was split, and
                not on the other half.
        """
        check_fence(self._manifest.folder, self._fence)
        folder = part_folder(self._manifest, rows)
        if Done.read(folder) is not None:
            self._done.append((rows, folder))
            return True
        if rows.first < rows.last and (was_split(self._manifest, rows) or inferred):
            return self._halve(rows, fails=inferred)
        part = (
            self._manifest
            if rows == all_rows(self._manifest)
            else make_part(self._manifest, rows, self._fence)
        )
        failure = self._attempt(part)
        if failure is None:
            self._done.append((rows, folder))
            return True
        _say(f"rows {rows} fail: {failure.exception_class}: {failure.exception_message}")
        if failure.stored:
            raise ConfigurationError(
                f"batch {self._manifest.batch_id} can't be bisected: the script stored rows in "
                f"{', '.join(failure.stored)} before it failed because of its data "
                f"({failure.exception_class}: {failure.exception_message}); let it do all that can fail "
                "before its first batch.write"
            )
        if rows.first == rows.last:
            self._alone[rows] = failure
            return False
        return self._halve(rows, fails=True)

    def _halve(self, rows: RowRange, *, fails: bool) -> bool:
        """Store as much as possible of the two halves of a part; return whether both were stored whole.

        Args:
            rows: Rows of the part.
            fails: Whether the whole part is known to fail: the script failed on it in this attempt, or it
                must fail (see `inferred` of `_settle`).
        """
        left, right = rows.halves()
        if not was_split(self._manifest, rows):
            if self._splits >= self._limit:
                raise ConfigurationError(
                    f"batch {self._manifest.batch_id}: {self._limit} splits were not enough; "
                    f"{len(self._alone)} messages failed alone, none was rejected. If the data "
                    "is not the cause, correct the job; otherwise raise bisect_splits; then clear "
                    "the task, which continues"
                )
            self._splits += 1
            _say(f"rows {rows} are split into {left} and {right}")
            # Both are created before either is run, because a split is never undone.
            for half in (left, right):
                make_part(self._manifest, half, self._fence)
        good = self._settle(left, inferred=False)
        return self._settle(right, inferred=good and fails) and good

    def _attempt(self, part: Manifest) -> DataFailure | None:
        """Run the script on a part; return its data failure, or `None` if it succeeded.

        Raises:
            Exception: Any other exception that the script raised.
            SystemExit: The script exited.
        """
        if part.folder != self._manifest.folder:
            with committing(part.folder):
                if current_fence(part.folder) > self._fence:
                    raise FencedError(f"{part.folder}: a newer attempt works on it: stopping")
                seal(part.folder / f"fence-{self._fence:06d}", b"")
        _say(f"running {self._application} on {part.rows} messages of {part.batch_id}")
        fence = str(self._fence)
        sys.argv = [self._application, "--manifest", part.uri, "--batch-id", part.batch_id, "--fence", fence]
        sys.argv += self._rest
        sys.path[0] = str(Path(self._application).parent)
        ended: BaseException | None = None
        try:
            runpy.run_path(self._application, run_name="__main__")
        except SystemExit as left:
            ended = left if left.code not in {0, None} else None
        except Exception as raised:  # noqa: BLE001 - it is raised below, unless the data were at fault
            ended = raised
        failure = DataFailure.read(part.folder).get(self._fence)
        if failure is None and ended is not None:
            raise ended
        if failure is None and Done.read(part.folder) is None:
            raise SpoolError(
                f"{part.folder}: the script ended without an error but there is no {DONE}: it must use "
                "airflow_provider_jmsjca.Batch in a `with` block"
            )
        return failure

    def _finish(self) -> None:
        """Seal `_DONE` of the whole batch, with the counts and rejects of its parts."""
        folder, stored, violations, rescued = self._manifest.folder, Counter[str](), Counter[str](), 0
        evolved = dict.fromkeys(evolutions(folder))
        for _, part in self._done:
            done = Done.read(part)
            stored.update({} if done is None else done.stored)
            violations.update({} if done is None else done.violations)
            rescued += 0 if done is None else done.rescued
            evolved.update(dict.fromkeys(() if done is None else done.evolved))
        # The attempt at the whole batch, which failed, may have sealed files too.
        sealed = len(numbered(folder, f"rejects-{self._fence:06d}"))
        path = folder / f"rejects-{self._fence:06d}-{sealed:06d}.jsonl"
        count, digest = 0, hashlib.sha256()
        with stage(path) as file:
            for reject in self._rejects():
                line = json.dumps(reject).encode() + b"\n"
                file.write(line)
                digest.update(line)
                count += 1
            if count and not file.seal():
                raise SpoolError(f"{path}: already exists: two jobs run as the same attempt; end one of them")
        rejects = (RejectsFile(file=path.name, rows=count, sha256=digest.hexdigest()),) if count else ()
        done = Done(
            batch_id=self._manifest.batch_id,
            fence=self._fence,
            rows=self._manifest.rows,
            stored=dict(stored),
            rejected=count,
            rejects=rejects,
            violations=dict(violations),
            rescued=rescued,
            evolved=tuple(evolved),
            finished=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        with committing(folder):
            check_fence(folder, self._fence)
            if not done.create(folder):
                raise FencedError(f"{folder}: another attempt has finished this batch")
        _say(f"done after {self._splits} splits: stored {dict(stored)}, rejected {count}")

    def _rejects(self) -> Iterator[dict[str, object]]:
        for rows, failure in self._alone.items():
            segment, position = position_in_batch(self._manifest, rows, 0, 0)
            yield {
                "segment": segment,
                "position": position,
                "exception_class": failure.exception_class,
                "exception_message": failure.exception_message,
            }
        for rows, folder in self._done:
            done = Done.read(folder)
            for file in () if done is None else done.rejects:
                with open_file(folder / file.file) as lines:
                    for line in lines:
                        reject = json.loads(line)
                        place = position_in_batch(self._manifest, rows, reject["segment"], reject["position"])
                        yield reject | {"segment": place[0], "position": place[1]}


def _say(text: str) -> None:
    sys.stderr.write(f"Bisecting: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
