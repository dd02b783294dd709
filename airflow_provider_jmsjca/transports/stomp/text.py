"""Text as Java writes it: modified UTF-8.

Java's brokers store text with NUL as two bytes and characters beyond U+FFFF as two surrogates of three bytes
each. A strict UTF-8 decoder refuses both, and Java refuses proper UTF-8 for the latter.

Source: java.io.DataInput, "Modified UTF-8".
"""

from __future__ import annotations

import re
from typing import Final

_DIFFERS: Final = re.compile("[\0\U00010000-\U0010ffff]")


def encode_modified(text: str) -> bytes:
    """Return text as Java writes it.

    Raises:
        UnicodeEncodeError: It holds half a surrogate pair.
    """
    plain = text.encode()
    if ("\0" not in text and text.isascii()) or not _DIFFERS.search(text):
        return plain
    return _DIFFERS.sub(_two_units, text).encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def _two_units(match: re.Match[str]) -> str:
    code = ord(match[0])
    if not code:
        return match[0]
    code -= 0x10000
    return chr(0xD800 + (code >> 10)) + chr(0xDC00 + (code & 0x3FF))


def decode_modified(data: bytes) -> str:
    """Return text that came in UTF-8, plain or modified, or a mixture.

    Raises:
        UnicodeDecodeError: It is neither.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        # 0xC0 stands nowhere in plain UTF-8, so the replacement can't hit anything else.
        halves = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
