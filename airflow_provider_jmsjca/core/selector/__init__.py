"""Message selectors: parsing with error positions, evaluation by SQL-92 and JMS rules, templates.

This folder may import `core.message`.

Source: JMS 2.0 section 3.8; J178-J182.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector.evaluation import Compiler, Condition
from airflow_provider_jmsjca.core.selector.parser import parse
from airflow_provider_jmsjca.core.selector.substitution import Parameter, parameters_for, substitute
from airflow_provider_jmsjca.core.selector.syntax import Node
from airflow_provider_jmsjca.core.selector.writing import names_in, with_alternate_names, with_doubles, write
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError

__all__ = ["Parameter", "Selector", "parameters_for", "selector_text", "substitute"]

_MOST_RENAMED: Final = 4
_BLANKS: Final = " \t\n\r\f"


def selector_text(text: str | None) -> str | None:
    """Return the text of a selector; `None` for a blank selector, which selects every message."""
    return text if text and text.strip(_BLANKS) else None


class Selector:
    """A message selector, ready to be evaluated.

    Two selectors are equal if they have the same text and the same way of comparing. `str()` gives the text.

    Source: JMS 2.0 section 3.8.
    """

    __slots__ = ("_condition", "_strings_as_numbers", "_text", "_tree")

    def __init__(self, text: str, tree: Node | None, *, strings_as_numbers: bool) -> None:
        """Create a selector from its parsed tree. Callers use `Selector.parse`."""
        self._text = text
        self._tree = tree
        self._strings_as_numbers = strings_as_numbers
        self._condition: Condition | None = None
        if tree is not None:
            # The same tree as for `portable`, so that this selector and the broker select the same messages.
            seen = with_doubles(tree) if strings_as_numbers else tree
            self._condition = Compiler(strings_as_numbers=strings_as_numbers).condition(seen)

    @classmethod
    def parse(cls, text: str, *, strings_as_numbers: bool = False) -> Selector:
        """Return the selector of a text; a blank text selects every message.

        Args:
            text: The selector.
            strings_as_numbers: Whether to compare and divide values as ActiveMQ does, for transports that
                deliver properties as strings (STOMP). `n > 2` then selects a message with the string `3` as
                `n`. Otherwise types are strict: a comparison of unlike types is unknown.

        Raises:
            ConfigurationError: The text is not a selector; the error gives the position, the token found and
                the expected form.
        """
        if not isinstance(text, str):
            raise ConfigurationError(f"message selector: expected text, not {type(text).__name__}")
        if selector_text(text) is None:
            return cls(text, None, strings_as_numbers=strings_as_numbers)
        return cls(text, parse(text), strings_as_numbers=strings_as_numbers)

    @property
    def portable(self) -> str:
        """The selector in a form that brokers interpret as JMS does; empty if the selector is blank.

        `NOT a = 'x'` becomes `NOT (a = 'x')`. Without parentheses, ActiveMQ would read `(NOT a) = 'x'`, and
        then stop delivering without an error. `a = NULL` becomes `a IS NULL`. `a > 2` becomes `a > 2.0`,
        which also finds the text `3.5`.
        """
        return "" if self._tree is None else write(with_doubles(self._tree))

    def portable_with(self, others: Mapping[str, str]) -> str:
        """Return `portable` for a transport that sends some properties under other names.

        The result reads the other name of such a property first. In a message without this name, the result
        reads the property's own name, which the broker may also use for a header.

        Args:
            others: Name of a property -> the other name under which the transport sends it.

        Raises:
            CapabilityError: The selector uses more than four of the properties in `others`. Each of these
                properties doubles the length of the result.
        """
        if self._tree is None:
            return ""
        found = [name for name in dict.fromkeys(names_in(self._tree)) if name in others]
        if len(found) > _MOST_RENAMED:
            raise CapabilityError(
                f"message selector: {', '.join(found)} are also names of headers on this broker; a selector "
                f"can use at most {_MOST_RENAMED} such properties. Let the sender use other names"
            )
        return write(with_alternate_names(with_doubles(self._tree), others))

    def matches(self, message: JmsMessage) -> bool:
        """Return whether the message is selected; an unknown result counts as false."""
        return self._condition is None or self._condition(message) is True

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Selector.parse({self._text!r}, strings_as_numbers={self._strings_as_numbers})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Selector):
            return NotImplemented
        return (self._text, self._strings_as_numbers) == (other._text, other._strings_as_numbers)

    def __hash__(self) -> int:
        return hash((self._text, self._strings_as_numbers))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the text only, because closures can't be pickled."""
        return _restore, (self._text, self._strings_as_numbers)


def _restore(text: str, strings_as_numbers: bool) -> Selector:
    return Selector.parse(text, strings_as_numbers=strings_as_numbers)
