"""A secret shared by the processes that use one spool."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from typing import Final

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spool.files import (
    SpoolPath,
    make_folder,
    read_file,
    require_exclusive_creation,
    seal,
)

_FILE: Final = ".secret"
_BYTES: Final = 32
_DIGITS: Final = 32
"""Length of a code in hexadecimal digits: 128 bits."""
_FORM: Final = re.compile(rb"[0-9a-f]{64}")


def secret_code(spool: SpoolPath, *name: str) -> str:
    """Return a code for a name that can be neither guessed nor computed without read access to the spool.

    Guarantee: the same spool and name give the same code in every process, also after a crash. The first call
    creates the secret, a file with access for its owner only. If two processes create it at the same time,
    both use the file that was created first.

    Args:
        spool: The folder of the spool.
        name: The parts of the name for which the code is computed.

    Returns:
        32 hexadecimal digits, an HMAC-SHA256 of the name.

    Raises:
        SpoolError: The secret can't be read or written, or is damaged.
        ConfigurationError: The store can't create an object exclusively.
    """
    key = _secret(spool)
    return hmac.new(key, json.dumps(name).encode(), hashlib.sha256).hexdigest()[:_DIGITS]


def _secret(spool: SpoolPath) -> bytes:
    path = spool / _FILE
    try:
        try:
            found = read_file(path)
        except FileNotFoundError:
            require_exclusive_creation(spool)
            make_folder(spool)
            seal(path, secrets.token_hex(_BYTES).encode())
            found = read_file(path)
    except OSError as error:
        raise SpoolError(f"{path}: the spool's secret can't be read: {error.strerror or error}") from error
    if not _FORM.fullmatch(found):
        raise SpoolError(
            f"{path}: expected {2 * _BYTES} hexadecimal digits; delete it, and the next request makes another"
        )
    return found
