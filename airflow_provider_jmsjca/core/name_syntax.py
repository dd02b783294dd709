"""Broker syntax in destination names: options, composite names, wildcards, queues of an address.

If a broker gives a name a special meaning, no other name may be derived from it. Two different names may
then denote the same queue.
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
    """Characters with a special meaning in a broker's destination names; by default there are none.

    Attributes:
        options: Separates the name from its options. Empty: names have no options.
        separator: Separates the parts of a composite name. Each part may begin with `/queue/` or `/topic/`.
        any_word: Wildcard for any single word between dots.
        any_words: Wildcard for any number of words between dots, including none.
        wildcards_in: The kinds of destinations whose names may have wildcards.
        qualifier: Separates an address from one of its queues.
        virtual_topics: Whether a message sent to `topic://VirtualTopic.x` reaches
            `queue://Consumer.y.VirtualTopic.x`.
    """

    options: str = ""
    separator: str = ""
    any_word: str = ""
    any_words: str = ""
    wildcards_in: frozenset[DestinationKind] = frozenset(DestinationKind)
    qualifier: str = ""
    virtual_topics: bool = False

    def meaning(self, destination: Destination) -> str | None:
        """Return the broker's interpretation of a name; `None` if it takes the name literally."""
        name = destination.name
        if self.options and self.options in name:
            return f"{self.options} and the text after it are options"
        if self.separator and self.separator in name:
            return "these are several destinations"
        if self._is_wildcard(destination):
            return "this is a wildcard"
        if self.qualifier and self.qualifier in name:
            return "this is a queue of an address"
        return None

    def parts(self, destination: Destination) -> tuple[Destination, ...]:
        """Return the destinations that a name denotes, without options; they may have wildcards."""
        name = destination.name.partition(self.options)[0] if self.options else destination.name
        texts = [name]
        if self.separator and self.separator in name:
            texts = [text for each in name.split(self.separator) if (text := each.strip())]
        return tuple(_part(destination, text) for text in texts if text)

    def is_single(self, destination: Destination) -> bool:
        """Return whether messages sent to a name go to exactly one destination; options are ignored."""
        parts = self.parts(destination)
        return len(parts) == 1 and not self._is_wildcard(parts[0])

    def reaches(self, target: Destination, source: Destination) -> bool:
        """Return whether a consumer of `source` may receive messages sent to `target`."""
        sources = self.parts(source)
        return any(self._may_match(sent, each) for sent in self._sent_to(target) for each in sources)

    def home(self, found: Destination | None, source: Destination) -> Destination | None:
        """Return the single destination to which a message can be returned; `None` if there is none.

        The result is `source` if that is a single destination. Otherwise the result is `found`, provided
        that `source` denotes several destinations and `found` is one of them.

        Args:
            found: The message's destination as reported by the broker.
            source: The destination from which the message was received, as named by the activation.
        """
        if self.is_single(source):
            return source
        if found is None or not self.can_return(source) or self.meaning(found) is not None:
            return None
        return found if any(self._may_match(found, part) for part in self.parts(source)) else None

    def can_return(self, source: Destination) -> bool:
        """Return whether a message can be sent back to exactly the queue from which it was received.

        This isn't possible for a wildcard on a broker that separates queues from addresses. There, the
        consumer of a wildcard has a queue of its own, to which no message can be sent.
        """
        return not self.qualifier or self.is_single(source)

    def check_derived(self, name: Destination, source: Destination, broker: str) -> None:
        """Refuse a name derived from another, such as `$.dlq`, if the broker could read it as another queue.

        That is possible if the broker gives both names a special meaning, for example as a pattern.

        Args:
            name: The derived destination.
            source: The destination with the original name.
            broker: Name of the broker with this syntax, for the error.

        Raises:
            ConfigurationError: The broker takes neither of the two names literally.
        """
        meaning = self.meaning(source)
        if meaning is None or self.meaning(name) is None:
            return
        expected = "the whole name"
        if self.is_single(source) and self.options and self.options in source.name:
            expected += f", or the source as jmsjca://?name={self.parts(source)[0]}&OPTION=VALUE"
        raise ConfigurationError(
            f"{name} can't be derived from the name of {source}: for {broker} {meaning}; expected {expected}"
        )

    def check_target(self, target: Destination, source: Destination, broker: str) -> None:
        """Refuse a target from which a copy would return to the source of the message.

        Args:
            target: Destination of the move or copy.
            source: The destination from which the message was received, as named by the activation.
            broker: Name of the broker with this syntax, for the error.

        Raises:
            ConfigurationError: A consumer of `source` may receive the copy.
        """
        if self.reaches(target, source):
            raise ConfigurationError(
                f"a message moved from {source} to {target} would be received from {source} again on "
                f"{broker}; expected another destination"
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

    def _may_match(self, sent: Destination, source: Destination) -> bool:
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
        """Return whether any name matches both patterns."""
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
"""Syntax of a broker that takes every name literally."""


def _part(destination: Destination, text: str) -> Destination:
    for kind in DestinationKind:
        prefix = f"/{kind}/"
        if text.startswith(prefix) and len(text) > len(prefix) and text != destination.name:
            return Destination(kind, text.removeprefix(prefix))
    return replace(destination, name=text, options=())
