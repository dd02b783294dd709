"""Makes an exception's text fit into a message property."""

from __future__ import annotations

from collections.abc import Iterator

_ESCAPED_ON_THE_WIRE = frozenset("\\:\r\n")
_LAST_OF_BMP = 0xFFFF


def shortened(text: str, limit: int | None) -> str:
    """Return the text fit for a property: encodable, and with its middle left out if it is too long.

    Brokers limit the bytes of a header line, so every character counts as what it takes on the wire.

    Args:
        text: Any text. What can't be encoded is replaced.
        limit: The longest property that passes; `None` for no limit.
    """
    sound = text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\N{REPLACEMENT CHARACTER}")
    if limit is None or sum(map(_wire_length, sound)) <= limit:
        return sound
    marker = f"\n... about {len(sound) - limit} of {len(sound)} characters left out ...\n"
    room = limit - sum(map(_wire_length, marker))
    if room <= 0:
        return sound[: _fitting(iter(sound), limit)]
    head = _fitting(iter(sound), room // 2)
    tail = _fitting(reversed(sound), room - room // 2)
    return sound[:head] + marker + sound[len(sound) - tail :]


def _fitting(characters: Iterator[str], room: int) -> int:
    count = 0
    for character in characters:
        room -= _wire_length(character)
        if room < 0:
            break
        count += 1
    return count


def _wire_length(character: str) -> int:
    if ord(character) > _LAST_OF_BMP:
        return 6  # Java clients and brokers write two surrogates of three bytes each
    return len(character.encode("utf-8")) + (character in _ESCAPED_ON_THE_WIRE)
