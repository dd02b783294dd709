"""How a broker reads the names of destinations: options, several in one, wildcards, queues of an address.

A name that a broker doesn't take literally must not become a part of another name, and two names that differ
may stand for the same queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.errors import ConfigurationError

_WORDS: Final = "."
_VIRTUAL_TOPIC: Final = "VirtualTopic"
_VIRTUAL_TOPIC_CONSUMERS: Final = ("Consumer", "*")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameSyntax:
    """Which characters in a name have a meaning for a broker; by default none has.

    Attributes:
        options: Ends the name; what follows are options. Empty: names have no options.
        separator: Stands between several names in one. Each of these may begin with `/queue/` or `/topic/`.
        any_word: Between dots: any one word.
        any_words: Between dots: any number of words, none included.
        wildcards_in: The kinds of destinations in whose names wildcards count.
        qualifier: Stands between an address and one of its queues.
        virtual_topics: What is sent to `topic://VirtualTopic.x` reaches `queue://Consumer.y.VirtualTopic.x`.
    """

    options: str = ""
    separator: str = ""
    any_word: str = ""
    any_words: str = ""
    wildcards_in: frozenset[DestinationKind] = frozenset(DestinationKind)
    qualifier: str = ""
    virtual_topics: bool = False

    def meaning(self, destination: Destination) -> str | None:
        """Return how the broker reads a name that it doesn't take literally; `None` if it does."""
        name = destination.name
        if self.options and self.options in name:
            return f"{self.options} and what follows are options"
        if self.separator and self.separator in name:
            return "these are several destinations"
        if self._is_wildcard(destination):
            return "this is a wildcard"
        if self.qualifier and self.qualifier in name:
            return "this is a queue of an address"
        return None

    def parts(self, destination: Destination) -> tuple[Destination, ...]:
        """Return the destinations that a name stands for, without options; they may have wildcards."""
        name = destination.name.partition(self.options)[0] if self.options else destination.name
        texts = [name]
        if self.separator and self.separator in name:
            texts = [text for each in name.split(self.separator) if (text := each.strip())]
        return tuple(_part(destination, text) for text in texts if text)

    def is_single(self, destination: Destination) -> bool:
        """Say whether what is sent to a name goes to one destination, options or not."""
        parts = self.parts(destination)
        return len(parts) == 1 and not self._is_wildcard(parts[0])

    def reaches(self, target: Destination, source: Destination) -> bool:
        """Say whether a consumer of `source` may receive what is sent to `target`."""
        sources = self.parts(source)
        return any(self._meet(sent, each) for sent in self._sent_to(target) for each in sources)

    def home(self, found: Destination | None, source: Destination) -> Destination | None:
        """Return the one destination to which a message goes back; `None` if there is none.

        Args:
            found: Where the broker says the message was.
            source: Where it was received, as the activation names it.
        """
        if self.is_single(source):
            return source
        if found is None or not self.can_return(source) or self.meaning(found) is not None:
            return None
        return found if any(self._meet(found, part) for part in self.parts(source)) else None

    def can_return(self, source: Destination) -> bool:
        """Say whether a message can be sent back to where it was received, and to no other queue.

        Where queues are apart from addresses, a wildcard has its own queue, to which nothing can be sent.
        """
        return not self.qualifier or self.is_single(source)

    def check_derived(self, name: Destination, source: Destination, broker: str) -> None:
        """Refuse a name that was made of another one which the broker doesn't take literally.

        Args:
            name: What was made.
            source: The destination of whose name it was made.
            broker: Whose syntax this is, for the error.

        Raises:
            ConfigurationError: The broker reads more into the name than a name.
        """
        meaning = self.meaning(source)
        if meaning is None or self.meaning(name) is None:
            return
        expected = "the whole name"
        if self.is_single(source) and self.options and self.options in source.name:
            expected += f", or the source as jmsjca://?name={self.parts(source)[0]}&OPTION=VALUE"
        raise ConfigurationError(
            f"{name} can't be made of the name of {source}: for {broker} {meaning}; expected {expected}"
        )

    def check_target(self, target: Destination, source: Destination, broker: str) -> None:
        """Refuse a target from which a copy would come back to where the message was received.

        Args:
            target: Where a message is to be moved or copied.
            source: Where it was received, as the activation names it.
            broker: Whose syntax this is, for the error.

        Raises:
            ConfigurationError: The copy would come back.
        """
        if self.reaches(target, source):
            raise ConfigurationError(
                f"what is moved from {source} to {target} would come back on {broker}; expected another "
                "destination"
            )

    def _is_wildcard(self, destination: Destination) -> bool:
        wildcards = {self.any_word, self.any_words} - {""}
        return destination.kind in self.wildcards_in and not wildcards.isdisjoint(
            destination.name.split(_WORDS)
        )

    def _sent_to(self, target: Destination) -> Iterator[Destination]:
        for part in self.parts(target):
            yield part
            words = part.name.split(_WORDS)
            if self.virtual_topics and part.kind is DestinationKind.TOPIC and words[0] == _VIRTUAL_TOPIC:
                yield Destination.queue(_WORDS.join((*_VIRTUAL_TOPIC_CONSUMERS, *words)))

    def _meet(self, sent: Destination, source: Destination) -> bool:
        if self.qualifier and (self.qualifier in sent.name or self.qualifier in source.name):
            (address, _, queue), (other_address, _, other) = (
                each.name.partition(self.qualifier) for each in (sent, source)
            )
            if queue and other:
                return queue == other
            return self._overlap(address.split(_WORDS), other_address.split(_WORDS))
        if sent.kind is not source.kind or sent.kind not in self.wildcards_in:
            return sent == source
        return self._overlap(sent.name.split(_WORDS), source.name.split(_WORDS))

    def _overlap(self, left: list[str], right: list[str]) -> bool:
        """Say whether there is a name that matches both patterns."""
        many, one = self.any_words or None, self.any_word or None
        reached = {(0, 0)}
        pending = [(0, 0)]
        while pending:
            at, other = pending.pop()
            word = left[at] if at < len(left) else None
            against = right[other] if other < len(right) else None
            if word is None and against is None:
                return True
            following: list[tuple[int, int]] = []
            if many is not None and word == many:
                following += [(at + 1, other)] + ([(at, other + 1)] if against is not None else [])
            if many is not None and against == many:
                following += [(at, other + 1)] + ([(at + 1, other)] if word is not None else [])
            if word is not None and against is not None and (word == against or one in {word, against}):
                following.append((at + 1, other + 1))
            for each in following:
                if each not in reached:
                    reached.add(each)
                    pending.append(each)
        return False


LITERAL: Final = NameSyntax()
"""Of a broker that takes every name literally."""


def _part(destination: Destination, text: str) -> Destination:
    for kind in DestinationKind:
        prefix = f"/{kind}/"
        if text.startswith(prefix) and len(text) > len(prefix) and text != destination.name:
            return Destination(kind, text.removeprefix(prefix))
    return replace(destination, name=text, options=())
