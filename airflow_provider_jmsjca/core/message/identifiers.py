"""Names that JMS allows for properties, and that selectors can refer to."""

from __future__ import annotations

import unicodedata

RESERVED_WORDS = frozenset(
    {"NULL", "TRUE", "FALSE", "NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE"}
)
SETTABLE_JMSX_NAMES = frozenset({"JMSXGroupID", "JMSXGroupSeq"})

_START_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Sc", "Pc"})
_PART_CATEGORIES = _START_CATEGORIES | {"Nd", "Mc", "Mn", "Cf"}


def is_identifier_start(character: str) -> bool:
    """Return whether a Java identifier may begin with this character (a letter, `_`, `$` ...)."""
    return unicodedata.category(character) in _START_CATEGORIES


def is_identifier_part(character: str) -> bool:
    """Return whether a Java identifier may contain this character after the first.

    Java also allows most control characters. They are refused here, because no frame could carry them.
    """
    return unicodedata.category(character) in _PART_CATEGORIES


def is_identifier(name: str) -> bool:
    """Return whether the name has the form of a Java identifier."""
    if name.isascii() and name.isidentifier():
        return True
    return bool(name) and is_identifier_start(name[0]) and all(map(is_identifier_part, name[1:]))


def property_name_fault(name: object) -> str | None:
    """Return the fault in the name of a property to be set by an application.

    Valid names are Java identifiers, except the reserved words of selectors. Of the names that begin with
    `JMS`, only `JMSXGroupID`, `JMSXGroupSeq`, `JMS_...` (providers) and `JMSJCA...` can be set.

    Returns:
        One sentence, or `None` if the name is valid.

    Source: JMS 2.0 sections 3.5.1, 3.5.9 and 3.8.1.1; J152.
    """
    if not isinstance(name, str):
        return f"property name {name!r}: expected text, not {type(name).__name__}"
    if not is_identifier(name):
        position = next(
            (
                index
                for index, character in enumerate(name)
                if not (is_identifier_part(character) if index else is_identifier_start(character))
            ),
            0,
        )
        return (
            f"property name {name!r}: position {position + 1}: expected a Java identifier "
            "(letters, digits, '_' and '$', not beginning with a digit)"
        )
    if name.upper() in RESERVED_WORDS:
        return f"property name {name!r}: reserved word of message selectors; expected another name"
    if name.startswith("JMSX") and name not in SETTABLE_JMSX_NAMES:
        return (
            f"property name {name!r}: of the names beginning with JMSX only "
            f"{' and '.join(sorted(SETTABLE_JMSX_NAMES))} can be set by an application"
        )
    if name.startswith("JMS") and not name.startswith(("JMSX", "JMS_", "JMSJCA")):
        return (
            f"property name {name!r}: names beginning with JMS are reserved; headers such as JMSType are "
            "arguments of their own, expected a name without that prefix"
        )
    return None
