"""What must never be shown: secret values in reprs, logs and errors."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
_SECRET_WORDS = re.compile(r"pass(?:word|wd|code|phrase)|secret|token|credential|pwd", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=//)[^/?]*@")
_SECRET_PAIR = re.compile(
    r"([\w.%-]*(?:pass(?:word|wd|code|phrase)|secret|token|credential|pwd)[\w.%-]*\s*[=:]\s*)(?:[^&;,\s]|;(?!\s))+",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Tell whether the value under this name is masked wherever it is shown."""
    return _SECRET_WORDS.search(name) is not None


def masked_text(text: str) -> str:
    """Return text that may hold a URL or options with user information and secret values blotted out."""
    return _SECRET_PAIR.sub(rf"\g<1>{MASK}", _USERINFO.sub(f"{MASK}@", text))


def blotted(text: str, secrets: Iterable[str]) -> str:
    """Return text from elsewhere with these very values blotted out, whatever stands around them."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    return text


def masked_value(name: str, value: str) -> str:
    """Return the value as it may be shown under this name."""
    return MASK if is_secret(name) else masked_text(value)
