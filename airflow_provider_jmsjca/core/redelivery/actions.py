"""Actions on a redelivered message: delay it, move it, delete it."""

from __future__ import annotations

import enum
import functools
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import TypeAlias

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.query import NAMED, read_named_destination, write_named_destination
from airflow_provider_jmsjca.errors import ConfigurationError

MAX_COUNT = 50_000_000
MAX_DELAY_MILLISECONDS = 365 * 24 * 60 * 60 * 1000
MAX_MULTIPLIER = 1000.0
SLICE = timedelta(seconds=5)
BLANKS = " \t\r\n\f\v"

NEXT_TARGET = re.compile(rf",[{BLANKS}]*(?=(?:queue|topic|same)[{BLANKS}]*:)")

_LOOKUP = "lookup://"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class MoveKind(enum.StrEnum):
    """Kind of a move target: a queue, a topic, or the same kind as the source."""

    QUEUE = "queue"
    TOPIC = "topic"
    SAME = "same"


def _count_faults(at: int) -> Iterator[str]:
    if not 1 <= at <= MAX_COUNT:
        yield f"the count is {at}; expected 1 to {MAX_COUNT}"


def _delay_faults(what: str, milliseconds: int, least: int) -> Iterator[str]:
    if not least <= milliseconds <= MAX_DELAY_MILLISECONDS:
        yield f"{what} is {milliseconds} ms; expected {least} to {MAX_DELAY_MILLISECONDS} ms (365 days)"


def _refuse(faults: Iterator[str]) -> None:
    if found := tuple(faults):
        raise ConfigurationError(found)


def _decimal(value: float) -> str:
    """Write a number without an exponent, so that the grammar reads it back to the same value."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True)
class Delay:
    """Deliver after a pause.

    Attributes:
        at: Lowest count for this action.
        milliseconds: Length of the pause, 0 to 365 days. A pause of more than 5 s is split, see `slices`.

    Raises:
        ConfigurationError: A number is out of range.

    Source: J133, J138, J139, J141.
    """

    at: int
    milliseconds: int

    def __post_init__(self) -> None:
        _refuse(self._faults())

    def _faults(self) -> Iterator[str]:
        yield from _count_faults(self.at)
        yield from _delay_faults("the delay", self.milliseconds, 0)

    def pause(self, seen: int, chance: float) -> timedelta:  # noqa: ARG002 - the same call as GrowingDelay.pause
        """Return the pause; it is the same at every count."""
        return timedelta(milliseconds=self.milliseconds)

    def __str__(self) -> str:
        return f"{self.at}:{self.milliseconds}"


@dataclass(frozen=True, slots=True)
class GrowingDelay:
    """Deliver after a pause that grows with every count.

    At count `at + n` the pause is `initial * multiplier**n`, at most `maximum`. A random part of up to
    `jitter` is subtracted, so that messages that failed together aren't all redelivered together.

    Attributes:
        at: Lowest count for this action.
        initial: First pause in milliseconds, at least 1.
        multiplier: Factor by which the pause grows with each count, 1 to 1000.
        maximum: Longest pause in milliseconds, not below `initial`.
        jitter: Random fraction of the pause, 0 (none) to 1 (all of it).

    Raises:
        ConfigurationError: A number is out of range.
    """

    at: int
    initial: int
    multiplier: float
    maximum: int
    jitter: float = 0.0

    def __post_init__(self) -> None:
        _refuse(self._faults())

    def _faults(self) -> Iterator[str]:
        yield from _count_faults(self.at)
        yield from _delay_faults("the initial delay", self.initial, 1)
        yield from _delay_faults("the longest delay", self.maximum, 1)
        if self.maximum < self.initial:
            yield f"the longest delay is {self.maximum} ms, below the initial {self.initial} ms"
        if not 1.0 <= self.multiplier <= MAX_MULTIPLIER:
            yield f"the multiplier is {self.multiplier}; expected 1 to {MAX_MULTIPLIER:g}"
        if not 0.0 <= self.jitter <= 1.0:
            yield f"the jitter is {self.jitter}; expected 0 to 1"

    def pause(self, seen: int, chance: float) -> timedelta:
        """Return the pause.

        Args:
            seen: The message's count.
            chance: A random number, 0 up to but not including 1.
        """
        steps = max(seen - self.at, 0)
        if steps * math.log(self.multiplier) >= math.log(self.maximum / self.initial):
            full = float(self.maximum)
        else:
            full = self.initial * self.multiplier**steps
        return timedelta(milliseconds=round(full * (1.0 - self.jitter * chance)))

    def __str__(self) -> str:
        jitter = f",{_decimal(self.jitter)}" if self.jitter else ""
        return f"{self.at}:backoff({self.initial},{_decimal(self.multiplier)},{self.maximum}{jitter})"


@dataclass(frozen=True, slots=True)
class MoveTarget:
    """One destination of a move; every `$` in the name is replaced with the original destination's name.

    Attributes:
        options: Options of the destination (`core.configuration.destination_options`).

    Raises:
        ConfigurationError: The name can't be written in a redelivery handling string.

    Source: J91, J133, J135, J136, J140; C9.
    """

    kind: MoveKind
    name: str
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "kind", MoveKind(self.kind))
        except ValueError as error:
            raise ConfigurationError(
                f"the kind of destination is {self.kind!r}; expected queue, topic or same"
            ) from error
        _refuse(self._faults())

    @classmethod
    def of(cls, destination: Destination) -> MoveTarget:
        """Return the target for a destination."""
        return cls(MoveKind(destination.kind.value), destination.name, destination.options)

    @classmethod
    def named(cls, kind: str, text: str) -> MoveTarget:
        """Return the target for a name, or a name with options: `jmsjca://?name=$.dlq&key=value`.

        Raises:
            ConfigurationError: The text can't be read.
        """
        if not text.lower().startswith(NAMED):
            return cls(kind, text)  # type: ignore[arg-type]  # becomes a MoveKind
        faults: list[str] = []
        name, options = read_named_destination(text, faults)
        if kind != MoveKind.SAME:
            said, separator, rest = name.partition("://")
            if separator and said in list(DestinationKind):
                if said != kind:
                    faults.append(f"the target is a {kind}, but its name {name!r} begins with {said}://")
                name = rest
        if faults:
            raise ConfigurationError(faults)
        return cls(kind, name, tuple(options.items()))  # type: ignore[arg-type]  # becomes a MoveKind

    def _faults(self) -> Iterator[str]:
        if not self.name:
            yield "the destination has no name; expected for example move(queue:orders.dlq)"
        if self.name != self.name.strip(BLANKS):
            yield f"the destination name {self.name!r} begins or ends with a blank"
        if ";" in self.name or _CONTROL.search(self.name):
            yield f"the destination name {self.name!r} holds a semicolon or a control character"
        if self.name.lower().startswith(NAMED):
            yield f"the destination name {self.name!r} reads as a name with options"
        if NEXT_TARGET.search(self.name):
            yield f"the destination name {self.name!r} reads as several targets"

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - a small value, and the same for each message
    def destination(self, original: Destination) -> Destination:
        """Return the target destination for a message from `original`.

        If the original is `lookup://` and a path, a target name with `$` gets the same folder: `dlq_$` with
        `lookup://a/b/name` gives `lookup://a/b/dlq_name`.

        Raises:
            ConfigurationError: The result is not a valid destination name.
        """
        kind = original.kind if self.kind is MoveKind.SAME else DestinationKind(self.kind.value)
        if "$" not in self.name:
            return Destination(kind, self.name, self.options)
        folder, name = "", original.name
        if name.startswith(_LOOKUP):
            folder, slash, name = name.rpartition("/")
            folder += slash
        return Destination(kind, folder + self.name.replace("$", name), self.options)

    def __str__(self) -> str:
        if not self.options:
            return f"{self.kind}:{self.name}"
        name = self.name if self.kind is MoveKind.SAME else f"{self.kind}://{self.name}"
        return f"{self.kind}:{write_named_destination(name, self.options)}"


@dataclass(frozen=True, slots=True)
class Move:
    """Move the message from its destination to another, or to several.

    Attributes:
        at: Lowest count for this action.
        kind: Kind of the first target.
        name: Name of the first target; `$` is replaced with the original name.
        further: Further targets; each of them gets the message, too.
        options: Options of the first target.
        all_targets: The first target and the further ones.

    Raises:
        ConfigurationError: The count is out of range, or a target is invalid or named twice.

    Source: J133-J136, J140, C8-C10; several targets as P9.
    """

    at: int
    kind: MoveKind
    name: str
    further: tuple[MoveTarget, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    all_targets: tuple[MoveTarget, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        faults = list(_count_faults(self.at))
        try:
            first = MoveTarget(self.kind, self.name, self.options)
        except ConfigurationError as error:
            raise ConfigurationError((*faults, *error.faults)) from error
        object.__setattr__(self, "kind", first.kind)
        targets = (first, *self.further)
        object.__setattr__(self, "all_targets", targets)
        faults += [
            f"the target {target} is named twice"
            for target in dict.fromkeys(targets)
            if targets.count(target) > 1
        ]
        _refuse(iter(faults))

    @classmethod
    def to(cls, at: int, targets: Sequence[MoveTarget]) -> Move:
        """Return a move to all these targets."""
        first, *further = targets
        return cls(at, first.kind, first.name, tuple(further), first.options)

    def targets(self, original: Destination) -> tuple[Destination, ...]:
        """Return every target for a message received from `original`, without repetition."""
        return tuple(dict.fromkeys(map(MoveTarget.destination, self.all_targets, itertools.repeat(original))))

    def __str__(self) -> str:
        return f"{self.at}:move({','.join(map(str, self.all_targets))})"


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the message from its destination; the message is lost.

    Raises:
        ConfigurationError: The count is out of range.

    Source: J133, C11.
    """

    at: int

    def __post_init__(self) -> None:
        _refuse(_count_faults(self.at))

    def __str__(self) -> str:
        return f"{self.at}:delete"


Action: TypeAlias = Delay | GrowingDelay | Move | Delete


def order_faults(actions: tuple[Action, ...]) -> Iterator[tuple[int, str]]:
    """Yield the index of every misplaced action, with the reason.

    Source: J139.
    """
    highest = 0
    for index, action in enumerate(actions):
        if action.at == highest:
            yield index, f"{action} repeats the count {highest}; every count may occur once"
        elif action.at < highest:
            yield index, f"{action} comes after the count {highest}; counts must increase"
        if isinstance(action, Move | Delete) and index < len(actions) - 1:
            yield index, f"{action} must be the last entry"
        highest = max(highest, action.at)


def slices(pause: timedelta, limit: timedelta = SLICE) -> Iterator[timedelta]:
    """Split a pause into pieces of at most `limit`, so that it can be interrupted in between.

    Yields:
        The pieces in order; nothing for a pause of 0.

    Source: J141.
    """
    while pause > timedelta(0):
        piece = min(pause, limit)
        yield piece
        pause -= piece
