"""The name of a batch.

A batch is named after its task instance, without the try number, so that a retry continues the batch.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from airflow_provider_jmsjca.errors import ConfigurationError

MAX_LENGTH = 180
_SEPARATOR = "~~"
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_WHOLE_TOKENS = re.compile(r"(?:[A-Za-z0-9_.-]|~[0-9A-F]{2}|~~)*")
_FORM = re.compile(rf"(?![._]){_WHOLE_TOKENS.pattern}(?<!^)")
_DIGEST_LENGTH = 32
# No task instance has such a name: it would have four parts, or end in `~~sha256-` and digits.
_REPLAY = re.compile(rf"replay{_SEPARATOR}[0-9a-f]{{{_DIGEST_LENGTH}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKey:
    """A task instance of Airflow, without its try number.

    Attributes:
        map_index: Index of a mapped task instance; -1 if the task isn't mapped, as in Airflow.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    def batch_id(self) -> str:
        """Return the name of the batch: a safe component of a path on every file system.

        The four parts are joined by `~~`. Letters, digits, `_`, `.` and `-` are kept; any other byte of the
        UTF-8 text becomes `~` and two hexadecimal digits. A `.` or `_` at the very beginning is replaced in
        the same way, because Spark ignores files with such names. `TaskKey.parse` reads the name back. A name
        over 180 characters is cut and ends in `~~sha256-` and 32 digits of the digest of the whole name. A
        cut name can't be read back.
        """
        parts = (self.dag_id, self.run_id, self.task_id, str(self.map_index))
        whole = _SEPARATOR.join(_escape(part) for part in parts)
        if whole[0] in "._":
            whole = f"~{ord(whole[0]):02X}{whole[1:]}"
        if len(whole) <= MAX_LENGTH:
            return whole
        tail = f"{_SEPARATOR}sha256-{hashlib.sha256(whole.encode()).hexdigest()[:_DIGEST_LENGTH]}"
        # An escape or a separator is kept whole or left out.
        head = _WHOLE_TOKENS.match(whole, 0, MAX_LENGTH - len(tail))
        return (head[0] if head else "") + tail

    @classmethod
    def parse(cls, batch_id: str) -> TaskKey | None:
        """Return the task instance that a batch is named after.

        Returns:
            `None` for a shortened name, and for the name of a replay or of a part of a batch.
        """
        parts = batch_id.split(_SEPARATOR)
        if len(parts) != 4 or not re.fullmatch(r"-?\d+", parts[3]):  # noqa: PLR2004 - dag, run, task, index
            return None
        dag_id, run_id, task_id = (_unescape(part) for part in parts[:3])
        return cls(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=int(parts[3]))


def check_batch_id(batch_id: str) -> str:
    """Return the name if it can be used as a component of a path.

    Raises:
        ConfigurationError: The name is too long, or has characters or a beginning that aren't allowed.
    """
    if len(batch_id) > MAX_LENGTH or not _FORM.fullmatch(batch_id):
        raise ConfigurationError(
            f"batch id {batch_id!r} can't name a folder: expected up to {MAX_LENGTH} letters, digits and "
            "'_', '.', '-', '~XX' not beginning with '.' or '_', as TaskKey(...).batch_id() makes it"
        )
    return batch_id


def replay_id(key: str) -> str:
    """Return the batch name of a replay, computed from a key. Equal keys give equal names."""
    return f"replay{_SEPARATOR}{hashlib.sha256(key.encode()).hexdigest()[:_DIGEST_LENGTH]}"


def is_replay(batch_id: str) -> bool:
    """Return whether this is the name of a replay, a batch with copies of other batches' messages."""
    return _REPLAY.fullmatch(batch_id) is not None


def _escape(text: str) -> str:
    return "".join(
        chr(byte) if byte in _PLAIN else f"~{byte:02X}" for byte in text.encode("utf-8", "surrogatepass")
    )


def _unescape(text: str) -> str:
    raw = re.sub(rb"~([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), text.encode("ascii"))
    return raw.decode("utf-8", "surrogatepass")
