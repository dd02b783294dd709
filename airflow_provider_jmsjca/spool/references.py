"""Messages of events: in the event itself, or in a file of the spool to which the event refers.

The name of a message's file is the digest of its content. So sealing the message again changes nothing, and a
reader can check that the content is unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.checks import shortened
from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spool.files import (
    Entry,
    ObjectPath,
    SpoolPath,
    is_folder,
    make_folder,
    open_file,
    remove,
    renew,
    require_exclusive_creation,
    seal,
    walk,
)
from airflow_provider_jmsjca.spool.files.posix import TEMPORARY_PREFIX
from airflow_provider_jmsjca.spool.manifest import path_to_uri, uri_to_path

FOLDER: Final = ".events"
"""Folder of the spool that holds messages of events. Because of the dot it isn't taken for a batch."""
_SHARDS: Final = 2
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST_UNFINISHED = timedelta(days=1)
_NANOSECONDS: Final = 1_000_000_000

_log = safe_logger(__name__)


def message_from_event(event: Any, *, spool_path: str | Path | None = None) -> JmsMessage:
    """Return the message of an event created by `JmsActivationTrigger`.

    The message is in the event, or in the spool if the event holds a reference. In the second case this
    machine needs access to the spool, and the message read is checked against the digest in the event.

    Args:
        event: One of `triggering_asset_events`, or its payload, or one of the `messages` in the payload of a
            batch.
        spool_path: The spool with the referenced messages, as a path or URI. `None` trusts the spools in
            Airflow's configuration: `[jmsjca] spool_path` and `[jmsjca] spool_roots`. A reference to any
            other location is refused, so that a forged event cannot choose the file or server that this
            process reads.

    Raises:
        ConfigurationError: `event` is no such event, carries no message, or is a batch, for which there is
            `messages_from_event`. Or it refers to a location outside the trusted spools.
        SpoolError: The message isn't in the spool (any more), can't be read, or was changed there.
    """
    payload = _payload(event)
    if "messages" in payload:
        raise ConfigurationError("event: it has several messages; read them with messages_from_event")
    if isinstance(reference := payload.get("reference"), Mapping):
        return read_message(reference, trusted_roots(spool_path))
    if isinstance(message := payload.get("message"), Mapping):
        return JmsMessage.from_json(message)
    raise ConfigurationError(
        "event: it carries no message; expected one of JmsActivationTrigger with event='message', and "
        "payload='message' or 'reference'"
    )


def messages_from_event(event: Any, *, spool_path: str | Path | None = None) -> tuple[JmsMessage, ...]:
    """Return the messages of an event, one or a whole batch, in order; see `message_from_event`."""
    payload = _payload(event)
    messages = payload.get("messages", [payload])
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise ConfigurationError("event: messages is not a list; expected an event of JmsActivationTrigger")
    return tuple(message_from_event(each, spool_path=spool_path) for each in messages)


def _payload(event: Any) -> Mapping[str, Any]:
    """Return the payload of an event: of an object with `extra`, of that `extra`, or the payload itself."""
    extra = event if isinstance(event, Mapping) else getattr(event, "extra", None)
    payload = extra.get("payload", extra) if isinstance(extra, Mapping) else None
    if not isinstance(payload, Mapping):
        raise ConfigurationError(
            f"event: got {type(event).__name__}, expected one of triggering_asset_events, or its payload"
        )
    return payload


def seal_message(spool: SpoolPath, message: JmsMessage) -> dict[str, Any]:
    """Put a whole message into the spool, and return a reference to it.

    Guarantee: after the return, the file survives a crash of the machine. Sealing the same message again
    only sets the file's modification time to now.

    Args:
        spool: The folder of the spool.
        message: The message. Headers, properties and body are kept exactly.

    Returns:
        `{"uri": "file:///.../.events/ab/abcd….json", "sha256": "abcd…", "bytes": 1048576}`.

    Raises:
        SpoolError: The file can't be written, for example because the disk is full.
        ConfigurationError: The spool's credentials are those of an Airflow connection, which readers of the
            event don't have. Or the store can't create an object exclusively.
    """
    if isinstance(spool, ObjectPath) and spool.bucket.options:
        raise ConfigurationError(
            f"spool_path {spool}: a message that an event refers to can't be put there: its readers have no "
            "Airflow connection. Leave the connection out of spool_path, and give the store's credentials to "
            "the environment of workers and triggerer"
        )
    content = json.dumps(message.to_json(), separators=(",", ":"), allow_nan=False).encode()
    digest = hashlib.sha256(content).hexdigest()
    path = _path(spool, digest)
    folder = path.parent
    try:
        require_exclusive_creation(spool)
        for each in (spool, folder.parent, folder):
            make_folder(each)
        if not seal(path, content):
            renew(path, content)
    except OSError as error:
        raise SpoolError(f"{path}: can't be written: {error.strerror or error}") from error
    return {"uri": path_to_uri(path), "sha256": digest, "bytes": len(content)}


def trusted_roots(given: str | Path | None = None) -> Sequence[SpoolPath]:
    """Return the spools from which messages of events may be read.

    Args:
        given: The only trusted spool. `None` trusts those of Airflow's configuration: `[jmsjca] spool_path`
            and `[jmsjca] spool_roots`.

    Raises:
        ConfigurationError: A spool can't be used. Or `given` is `None`, and Airflow isn't installed.
    """
    try:
        # Only a higher layer may import Airflow. A job without Airflow passes its spool.
        hooks = import_module("airflow_provider_jmsjca.hooks.spool")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "airflow":
            raise
        if given is None:
            raise ConfigurationError(
                "the event refers to a message in a spool, and without Airflow no spool is trusted; "
                "pass it: message_from_event(event, spool_path='/data/jms-spool')"
            ) from error
        return (given if isinstance(given, Path) else uri_to_path(given),)
    roots: Sequence[SpoolPath] = hooks.spool_roots() if given is None else (hooks.spool_path(given),)
    return roots


def read_message(reference: Mapping[str, Any], roots: Sequence[SpoolPath]) -> JmsMessage:
    """Return the message that `seal_message` has put into a trusted spool.

    The reference comes from an event, which may be forged. Therefore it only selects one of `roots`, and
    nothing outside of them is opened or contacted. The file is opened by the path and with the credentials of
    that root.

    Args:
        reference: The value that `seal_message` returned.
        roots: The trusted spools.

    Raises:
        ConfigurationError: `reference` is no reference, or names a file outside of the trusted spools.
        SpoolError: The file is missing, can't be read, or has changed since it was sealed.
    """
    uri, digest, size = (reference.get(name) for name in ("uri", "sha256", "bytes"))
    if not (isinstance(uri, str) and isinstance(digest, str) and isinstance(size, int)):
        raise ConfigurationError("reference: expected uri, sha256 and bytes of a message in the spool")
    path = _trusted_path(uri, digest, roots)
    try:
        with open_file(path) as file:
            if (length := file.seek(0, os.SEEK_END)) != size:
                raise SpoolError(
                    f"{path}: expected sha256 {digest} of {size} bytes, found {length} bytes: the file "
                    "has changed since it was sealed"
                )
            file.seek(0)
            content = file.read()
    except FileNotFoundError as error:
        raise SpoolError(
            f"{path}: the message isn't there; this machine doesn't see the triggerer's spool_path, or it "
            "was deleted after [jmsjca] reference_retention_days"
        ) from error
    except OSError as error:
        raise SpoolError(f"{path}: can't be read: {error.strerror or error}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise SpoolError(
            f"{path}: expected sha256 {digest}, found {found}: the file has changed since it was sealed"
        )
    try:
        return JmsMessage.from_json(json.loads(content))
    except (ValueError, RecursionError) as error:  # the event's author has sealed something else
        raise SpoolError(f"{path}: it holds no message: {error}") from error


def _trusted_path(uri: str, digest: str, roots: Sequence[SpoolPath]) -> SpoolPath:
    named = None
    if _DIGEST.fullmatch(digest):
        with contextlib.suppress(SpoolError):
            named = uri_to_path(uri)
    if named is None or named.name != f"{digest}.json":
        raise ConfigurationError(f"reference: {shortened(uri)} is not a message in a spool")
    for root in roots:
        if named == (path := _path(root.absolute(), digest)):
            return path
    trusted = " or ".join(path_to_uri(root) for root in roots)
    raise ConfigurationError(
        f"reference: {shortened(uri)} isn't in a trusted spool; expected one below {trusted}. To read from "
        "another spool, name it in [jmsjca] spool_roots, or "
        "call message_from_event(event, spool_path=...)"
    )


def _path(spool: SpoolPath, digest: str) -> SpoolPath:
    return spool / FOLDER / digest[:_SHARDS] / f"{digest}.json"


def sweep_references(spool: SpoolPath, retention: timedelta) -> int:
    """Delete messages that were sealed longer ago than the retention, and return the number of deleted files.

    Leftovers of crashed writers are deleted after a day, or sooner if the retention is shorter. Several
    processes may sweep at once. A file that can't be deleted is logged and stays.

    Args:
        spool: The folder of the spool.
        retention: How long messages are kept.
    """
    deleted = 0
    now = time.time()
    for path, _, modified, is_inner in _messages(spool):
        if is_inner:
            continue
        kept = min(retention, _LONGEST_UNFINISHED) if path.name.startswith(TEMPORARY_PREFIX) else retention
        try:
            if now - modified / _NANOSECONDS > kept.total_seconds():
                remove(path)
                deleted += 1
        except OSError as error:
            _log.warning("%s can't be deleted: %s", path, error)
    if deleted:
        _log.info("%d messages of events older than %s were deleted from %s", deleted, retention, spool)
    return deleted


def _messages(spool: SpoolPath) -> Sequence[Entry]:
    folder = spool / FOLDER
    return walk(folder) if is_folder(folder) else []
