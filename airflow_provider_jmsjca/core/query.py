"""Query strings of URLs and destination names, and names with options."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from airflow_provider_jmsjca.core.masking import MASK, is_secret

NAMED: Final = "jmsjca://"
"""Prefix of a destination name with options of its own."""

_PAIR_END = re.compile(r"&amp;|&")
_SURROGATE = re.compile("[\ud800-\udfff]")
_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


def read_query(text: str, source: str, faults: list[str]) -> dict[str, str]:
    """Return the pairs of `key=value&key=value`; add a fault for each invalid pair.

    Pairs end at `&` or `&amp;`; keys and values are percent-encoded UTF-8, `+` stands for a blank. A key
    given twice has its last value.

    Args:
        text: The text after the question mark.
        source: Name of the URL or text with the query, for errors.
        faults: The list to which faults are added.

    Source: J73.
    """
    query: dict[str, str] = {}
    if not text:
        return query
    for number, pair in enumerate(_PAIR_END.split(text), start=1):
        raw_key, equals, raw_value = pair.partition("=")
        key = percent_decoded(raw_key.replace("+", " "), f"{source}: key of option {number}", faults)
        if not equals:
            shown = MASK if "@" in key or is_secret(key) else repr(key[:40])
            faults.append(f"{source}: option {number} is {shown} without a value, expected key=value")
        elif not key:
            faults.append(f"{source}: option {number} has a value without a key, expected key=value")
        else:
            query[key] = percent_decoded(raw_value.replace("+", " "), f"{source}: option {key}", faults)
    return query


def read_named_destination(text: str, faults: list[str]) -> tuple[str, dict[str, str]]:
    """Return the destination and the options in `jmsjca://?name=destination&key=value`.

    Source: J91.
    """
    rest = text[len(NAMED) :]
    if not rest.startswith("?"):
        faults.append("destination: jmsjca:// needs a question mark, expected jmsjca://?name=destination")
    options = read_query(rest.removeprefix("?"), "destination", faults)
    name = options.pop("name", "")
    if not name:
        faults.append("destination: name is missing, expected jmsjca://?name=destination")
    return name, options


def write_named_destination(name: str, options: Iterable[tuple[str, str]]) -> str:
    """Return the text that `read_named_destination` reads back."""
    pairs = (("name", name), *options)
    return f"{NAMED}?" + "&".join(f"{quote(key)}={quote(given, safe='/:$')}" for key, given in pairs)


def percent_decoded(text: str, source: str, faults: list[str]) -> str:
    """Decode percent-encoded UTF-8; for invalid text, add a fault that doesn't show the text."""
    if text.isascii():
        if "%" not in text:
            return text
    elif _SURROGATE.search(text):
        faults.append(f"{source}: lone surrogate, which is not a character")
        return text
    broken = _PERCENT.search(text)
    if broken is not None:
        faults.append(
            f"{source}: broken escape at character {broken.start() + 1}, "
            "expected % and two hex digits (%25 for a percent sign)"
        )
        return text
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        faults.append(f"{source}: the percent-encoded bytes are not valid UTF-8")
        return text
