"""The redelivery policy, which maps a message's count to an action, and its text form.

A text is for example `5:1000; 10:5000; 50:move(queue:dlq.$)`:

    handling  := [entry {separator entry}] {";"}
    separator := ";" | ","
    entry     := count ":" action
    action    := milliseconds | "delete" | "move(" target {"," target} ")"
               | "backoff(" initial "," multiplier "," maximum ["," jitter] ")"
    target    := ("queue" | "topic" | "same") ":" (name | "jmsjca://?name=" name {"&" key "=" value})

Blanks are allowed around every part. A move extends to the next semicolon, so its names may contain commas
and parentheses. A comma in a move separates targets only before `queue:`, `topic:` or `same:`. Everywhere
else a comma separates entries, as in Java CAPS clients. JMSJCA has no comma outside a move. So only one kind
of JMSJCA string has a different meaning here: a move whose single target has `,queue:`, `,topic:` or `,same:`
in its name is read as a move to several targets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_jmsjca.core.redelivery.actions import (
    BLANKS,
    NEXT_TARGET,
    Action,
    Delay,
    Delete,
    GrowingDelay,
    Move,
    MoveKind,
    MoveTarget,
    order_faults,
)
from airflow_provider_jmsjca.errors import ConfigurationError

_B = f"[{BLANKS}]*"
_ENTRY = re.compile(rf"([0-9]+){_B}:{_B}(.*)", re.DOTALL)
_MOVE_BEGINS = re.compile(rf"{_B}[0-9]+{_B}:{_B}move{_B}\(")
_CALL = re.compile(rf"(move|backoff){_B}\((.*)\)", re.DOTALL)
_TARGET = re.compile(rf"(queue|topic|same){_B}:{_B}(.*)", re.DOTALL)
_WHOLE = re.compile(r"[0-9]+")
_DECIMAL = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_MAX_DIGITS = 18
_SHOWN = 60
_BACKOFF_FORM = "backoff(initial,multiplier,maximum) or backoff(initial,multiplier,maximum,jitter)"


@dataclass(frozen=True, slots=True)
class RedeliveryHandling:
    """Actions on redelivered messages, by their redelivery count.

    The text form is canonical: parsing `str(handling)` gives an equal value.

    Attributes:
        actions: Actions in order of their counts. Empty: every message is redelivered at once, without limit.

    Raises:
        ConfigurationError: The actions are out of order, or follow a move or a deletion.

    Source: J128-J144, J137b, J148.
    """

    DEFAULT: ClassVar[RedeliveryHandling]

    actions: tuple[Action, ...] = ()

    def __post_init__(self) -> None:
        faults = tuple(sentence for _, sentence in order_faults(self.actions))
        if faults:
            raise ConfigurationError(faults)

    @classmethod
    def parse(cls, text: str) -> RedeliveryHandling:
        """Return the handling of a JMSJCA string.

        Args:
            text: For example `5:1000; 10:5000; 50:move(queue:dlq.$)`; empty for no handling.

        Raises:
            ConfigurationError: Every fault with its position.
        """
        return cls(parse_actions(text))

    @classmethod
    def from_client_properties(
        cls,
        *,
        delay: str = "",
        after: int | None = None,
        action: str = "",
        move_kind: str = "auto",
        move_name: str = "",
    ) -> RedeliveryHandling:
        """Return the handling for the separate properties of a Java CAPS client.

        Args:
            delay: Delays separated by commas, `5:1000, 10:5000`; empty: no delays.
            after: Number of redeliveries before the action ("Move/Delete after N times").
            action: `move` or `delete`; empty: the message is redelivered without limit.
            move_kind: `queue`, `topic`, or `auto` for the same kind as the source.
            move_name: Name of the target; `$` is replaced with the original name.

        Raises:
            ConfigurationError: A property is invalid, or missing for the action.

        Source: C14.
        """
        actions = parse_actions(delay)
        wanted = action.strip(BLANKS).lower()
        if not wanted:
            return cls(actions)
        if wanted not in {"move", "delete"}:
            raise ConfigurationError(f"the action is {action!r}; expected move, delete or nothing")
        if after is None:
            raise ConfigurationError(
                f"the action {action!r} needs the number of deliveries after which it applies"
            )
        if wanted == "delete":
            return cls((*actions, Delete(after)))
        target = MoveTarget.named(MoveKind.SAME if move_kind == "auto" else move_kind, move_name)
        return cls((*actions, Move.to(after, (target,))))

    def action_for(self, seen: int) -> Action | None:
        """Return the action for a redelivered message.

        Args:
            seen: Number of deliveries with the redelivered flag: 0 on the first delivery, 1 on the next.

        Returns:
            The action with the highest count up to `seen`. `None` without such an action: deliver the message
            at once.

        Source: J130, J134, J137.
        """
        for action in reversed(self.actions):
            if action.at <= seen:
                return action
        return None

    def __str__(self) -> str:
        return "; ".join(map(str, self.actions))


RedeliveryHandling.DEFAULT = RedeliveryHandling(
    (Delay(3, 25), Delay(5, 50), Delay(10, 100), Delay(20, 1000), Delay(50, 5000))
)


class _Faults:
    """Collects every fault with its position, counted in characters from 1."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []

    def add(self, offset: int, sentence: str) -> None:
        self.found.append((offset, sentence))

    def add_all(self, offset: int, error: ConfigurationError) -> None:
        for sentence in error.faults:
            self.add(offset, sentence)

    def sentences(self) -> Iterator[str]:
        for offset, sentence in sorted(self.found):
            yield f"redelivery handling, character {offset + 1}: {sentence}"


def parse_actions(text: str) -> tuple[Action, ...]:
    """Return the actions of a redelivery handling string, in order of their counts.

    Raises:
        ConfigurationError: The string breaks the grammar; every fault is listed with its position.

    Source: J133, J137-J139; C5-C11; the comma C14.
    """
    faults = _Faults()
    actions: list[Action] = []
    offsets: list[int] = []
    for offset, entry in _entries(text):
        if (action := _action(offset, entry, faults)) is not None:
            actions.append(action)
            offsets.append(offset)
    for index, sentence in order_faults(tuple(actions)):
        faults.add(offsets[index], sentence)
    if faults.found:
        raise ConfigurationError(faults.sentences())
    return tuple(actions)


def _entries(text: str) -> Iterator[tuple[int, str]]:
    """Yield every entry with its offset, empty entries included; leave out empty entries at the end."""
    end = len(text.rstrip(BLANKS + ";"))
    start = 0
    while start < end:
        stop = text.find(";", start, end)
        stop = end if stop < 0 else stop
        yield from _pieces(start, text[start:stop])
        start = stop + 1


def _pieces(offset: int, chunk: str) -> Iterator[tuple[int, str]]:
    """Split the text between two semicolons at its commas, except inside parentheses and moves."""
    start = depth = 0
    within_move = _MOVE_BEGINS.match(chunk) is not None
    for index, character in enumerate(chunk):
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "," and depth <= 0 and not within_move:
            yield _stripped(offset + start, chunk[start:index])
            start = index + 1
            within_move = _MOVE_BEGINS.match(chunk, start) is not None
    yield _stripped(offset + start, chunk[start:])


def _stripped(offset: int, text: str) -> tuple[int, str]:
    left = text.lstrip(BLANKS)
    return offset + len(text) - len(left), left.rstrip(BLANKS)


def _action(offset: int, entry: str, faults: _Faults) -> Action | None:
    found = _ENTRY.fullmatch(entry)
    if not entry:
        faults.add(offset, "an entry is missing; expected count:action, for example 5:1000")
        return None
    if found is None:
        faults.add(offset, f"{_short(entry)} is not an entry; expected count:action, for example 5:1000")
        return None
    at = _whole(offset, found[1], faults)
    body, body_offset = found[2], offset + found.start(2)
    call = _CALL.fullmatch(body)
    try:
        if body == "delete":
            return Delete(at) if at is not None else None
        if _WHOLE.fullmatch(body):
            milliseconds = _whole(body_offset, body, faults)
            return Delay(at, milliseconds) if at is not None and milliseconds is not None else None
        if call is not None and call[1] == "move":
            return _move(at, body_offset + call.start(2), call[2], faults)
        if call is not None:
            return _backoff(at, body_offset + call.start(2), call[2], faults)
    except ConfigurationError as error:
        faults.add_all(offset, error)
        return None
    faults.add(
        body_offset,
        f"{_short(body)} is not an action; expected milliseconds, delete, move(queue:name) "
        f"or backoff(initial,multiplier,maximum)",
    )
    return None


def _move(at: int | None, offset: int, arguments: str, faults: _Faults) -> Move | None:
    cuts = [found.span() for found in NEXT_TARGET.finditer(arguments)]
    starts = (0, *(end for _, end in cuts))
    stops = (*(begin for begin, _ in cuts), len(arguments))
    targets = [
        _target(*_stripped(offset + start, arguments[start:stop]), faults)
        for start, stop in zip(starts, stops, strict=True)
    ]
    sound = tuple(target for target in targets if target is not None)
    if at is None or len(sound) < len(targets):
        return None
    return Move.to(at, sound)


def _target(offset: int, text: str, faults: _Faults) -> MoveTarget | None:
    found = _TARGET.fullmatch(text)
    if found is None:
        faults.add(offset, f"{_short(text)} is not a target; expected queue:name, topic:name or same:name")
        return None
    try:
        return MoveTarget.named(found[1], found[2])
    except ConfigurationError as error:
        faults.add_all(offset, error)
        return None


def _backoff(at: int | None, offset: int, arguments: str, faults: _Faults) -> GrowingDelay | None:
    forms = (_WHOLE, _DECIMAL, _WHOLE, _DECIMAL)
    parts = [part.strip(BLANKS) for part in arguments.split(",")]
    if len(parts) not in {3, 4} or not all(
        form.fullmatch(part) and len(part) <= _MAX_DIGITS for form, part in zip(forms, parts, strict=False)
    ):
        faults.add(offset, f"{_short(arguments)} are not the numbers of {_BACKOFF_FORM}")
        return None
    if at is None:
        return None
    jitter = float(parts[3]) if len(parts) == len(forms) else 0.0
    return GrowingDelay(at, int(parts[0]), float(parts[1]), int(parts[2]), jitter)


def _whole(offset: int, digits: str, faults: _Faults) -> int | None:
    if len(digits) > _MAX_DIGITS:
        faults.add(offset, f"a number has {len(digits)} digits; expected at most {_MAX_DIGITS}")
        return None
    return int(digits)


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
