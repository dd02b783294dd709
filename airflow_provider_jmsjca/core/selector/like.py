"""LIKE patterns, matched in time proportional to the text, whatever the pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_ANY_RUN = object()
_ANY_ONE = object()


def like(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """Return a function that tells whether a text matches: `%` is any run of characters, `_` any one.

    The escape character takes their meaning from `%`, `_` and itself; before anything else it stands for
    itself.

    Source: JMS 2.0 section 3.8.1.2.
    """
    segments: list[list[object]] = [[]]
    for part in _parts(pattern, escape):
        if part is _ANY_RUN:
            segments.append([])
        else:
            segments[-1].append(part)
    if len(segments) == 1:
        return _whole(segments[0])
    return _anchored(segments[0], [segment for segment in segments[1:-1] if segment], segments[-1])


def _parts(pattern: str, escape: str | None) -> Iterator[object]:
    position = 0
    while position < len(pattern):
        character = pattern[position]
        following = pattern[position + 1 : position + 2]
        if character == escape and following and following in {"%", "_", escape}:
            yield following
            position += 1
        elif character == "%":
            yield _ANY_RUN
        elif character == "_":
            yield _ANY_ONE
        else:
            yield character
        position += 1


def _expression(segment: list[object]) -> str:
    return "".join("." if part is _ANY_ONE else re.escape(str(part)) for part in segment)


def _whole(segment: list[object]) -> Callable[[str], bool]:
    if _ANY_ONE not in segment:
        return "".join(map(str, segment)).__eq__
    match = re.compile(_expression(segment), re.DOTALL).fullmatch
    return lambda text: match(text) is not None


def _anchored(head: list[object], middle: list[list[object]], tail: list[object]) -> Callable[[str], bool]:
    starts = re.compile(_expression(head), re.DOTALL).match
    finders = [re.compile(_expression(segment), re.DOTALL).search for segment in middle]
    ends = re.compile(_expression(tail), re.DOTALL).fullmatch
    shortest = len(head) + len(tail)
    tail_length = len(tail)

    def matches(text: str) -> bool:
        if len(text) < shortest or starts(text) is None:
            return False
        stop = len(text) - tail_length
        if ends(text, stop) is None:
            return False
        position = len(head)
        # The leftmost place for each segment leaves the most room for the rest: no need to try again.
        for find in finders:
            found = find(text, position, stop)
            if found is None:
                return False
            position = found.end()
        return True

    return matches
