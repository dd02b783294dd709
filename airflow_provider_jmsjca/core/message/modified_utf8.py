"""The UTF-8 that Java writes: characters beyond the BMP as two surrogates, NUL as two bytes.

ActiveMQ sends Java text this way over STOMP; a strict decoder refuses it.

Source: Java's `DataInput`, section "Modified UTF-8".
"""

from __future__ import annotations

import re

from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError

_BEYOND_BMP = re.compile(r"[\U00010000-\U0010FFFF]")
_SURROGATE = re.compile(r"[\uD800-\uDFFF]")
_NUL = b"\xc0\x80"


def encode(text: str) -> bytes:
    """Return the text in modified UTF-8.

    Raises:
        ConfigurationError: The text holds a lone surrogate.
    """
    lone = _SURROGATE.search(text)
    if lone:
        raise ConfigurationError(
            f"text, position {lone.start() + 1}: expected Unicode text, found a lone surrogate"
        )
    if text.isascii():
        return text.encode("ascii").replace(b"\x00", _NUL)
    split = _BEYOND_BMP.sub(_as_surrogates, text)
    return split.encode("utf-8", "surrogatepass").replace(b"\x00", _NUL)


def decode(data: bytes) -> str:
    """Decode modified or plain UTF-8.

    Raises:
        PoisonMessageError: The data is neither modified nor plain UTF-8; the error gives the byte offset
            (from 0) and the invalid byte.
    """
    try:
        # The bytes of NUL can be replaced without decoding, because only NUL contains the byte C0.
        split = data.replace(_NUL, b"\x00").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        offset = _original_offset(data, error.start)
        found = data[offset : offset + 1].hex()
        raise PoisonMessageError(
            f"text body, byte {offset}: expected UTF-8 or modified UTF-8, found {found}"
        ) from error
    try:
        # The detour over UTF-16 joins pairs of surrogates to one character.
        return split.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeDecodeError as error:
        raise PoisonMessageError(
            f"text body, UTF-16 unit {error.start // 2}: expected Unicode text, found a lone surrogate"
        ) from error


def _original_offset(data: bytes, offset: int) -> int:
    for count, match in enumerate(re.finditer(re.escape(_NUL), data)):
        if match.start() - count >= offset:
            return offset + count
    return offset + data.count(_NUL)


def _as_surrogates(match: re.Match[str]) -> str:
    offset = ord(match.group()) - 0x10000
    return chr(0xD800 + (offset >> 10)) + chr(0xDC00 + (offset & 0x3FF))
