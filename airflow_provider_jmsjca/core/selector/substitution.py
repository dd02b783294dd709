"""Substitutes parameters in selector templates; no value can change the structure of the selector."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from airflow_provider_jmsjca.core.message.identifiers import is_identifier_part
from airflow_provider_jmsjca.core.selector.parser import TokenKind, parse, tokenize
from airflow_provider_jmsjca.core.selector.syntax import Or
from airflow_provider_jmsjca.errors import ConfigurationError

Parameter: TypeAlias = str | int | float | bool

_PIECE = re.compile(r"\$\$|\$\{([^{}]*)\}|'")
_NOT_BEFORE = re.compile(r"(?:^|[^\w$])NOT\s*\Z", re.IGNORECASE)
_BLANK = " \t\n\r\f"


def substitute(template: str, parameters: Mapping[str, Parameter]) -> str:
    """Return the selector for a template and its parameters.

    `${name}` is replaced with the parameter of that name, and stays if there is no such parameter. `$$`
    becomes `$`. `${selector}` is the selector in the parameter `selector`. `${andselector}` is `and (...)`
    around this selector, and `${selectorand}` is `(...) and`; both are empty if the selector is blank.

    Inside a string literal of the template, quotes in a value are doubled. Elsewhere a value must be one
    literal: a number, a quoted string, TRUE or FALSE. `%` and `_` in a value keep their meaning in a LIKE
    pattern. Parameters in substituted values are not replaced.

    Args:
        template: The selector with parameters.
        parameters: Values by name; numbers and booleans are written as selector literals.

    Returns:
        The text, not yet parsed by `Selector.parse`.

    Raises:
        ConfigurationError: A value would change the structure of the selector, or the parameter `selector` is
            not a selector.

    Source: J179-J182.
    """
    output: list[str] = []
    quoted = False
    position = 0
    for match in _PIECE.finditer(template):
        output.append(template[position : match.start()])
        position = match.end()
        if match.group() == "'":
            quoted = not quoted
            output.append("'")
        elif match.group() == "$$":
            output.append("$")
        else:
            before = "".join(output)
            output.append(_replacement(match[1], match, before, parameters, quoted=quoted))
    output.append(template[position:])
    return "".join(output)


def parameters_for(template: str, values: Mapping[str, str]) -> dict[str, Parameter]:
    """Return the configured values of the parameters in a template, by their spelling in the template.

    Args:
        template: The selector with parameters.
        values: Values by name in lower case; the names of configured parameters ignore case.

    Source: J181.
    """
    names = {match[1] for match in _PIECE.finditer(template) if match[1]}
    return {name: values[name.lower()] for name in names if name.lower() in values}


def _replacement(
    name: str, match: re.Match[str], before: str, parameters: Mapping[str, Parameter], *, quoted: bool
) -> str:
    whole = name in {"selector", "andselector", "selectorand"}
    source = "selector" if whole else name
    if source not in parameters:
        return match.group()
    if whole:
        if quoted:
            raise ConfigurationError(
                f"selector template, position {match.start() + 1}: ${{{name}}} is a whole selector, "
                "expected it outside string literals"
            )
        return _whole_selector(name, parameters[source], match, before)
    if quoted:
        return _text(parameters[source]).replace("'", "''")
    return _single_literal(name, parameters[source], match, before)


def _text(value: Parameter) -> str:
    return str(value).upper() if isinstance(value, bool) else str(value)


def _whole_selector(name: str, value: Parameter, match: re.Match[str], before: str) -> str:
    text = _text(value)
    if not text.strip(_BLANK):
        return ""
    try:
        tree = parse(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"parameter 'selector': {fault}" for fault in error.faults) from error
    if name == "andselector":
        return f"and ({text})"
    if name == "selectorand":
        return f"({text}) and"
    after = match.string[match.end() :].strip(_BLANK)
    preceding = before.rstrip(_BLANK)
    alone = not preceding and not after
    enclosed = preceding.endswith("(") and after.startswith(")")
    if alone or enclosed or not (isinstance(tree, Or) or _NOT_BEFORE.search(preceding)):
        return text
    return f"({text})"


def _single_literal(name: str, value: Parameter, match: re.Match[str], before: str) -> str:
    text = _text(value)
    place = f"selector template, position {match.start() + 1}: parameter {name!r}"
    if not _is_single_literal(text):
        raise ConfigurationError(
            f"{place}: expected one literal (a number, a quoted string, TRUE or FALSE) in this place; "
            f"for text write '${{{name}}}' in single quotes"
        )
    after = match.string[match.end() : match.end() + 1]
    if _joins(before[-1:]) or _joins(after):
        raise ConfigurationError(
            f"{place}: expected blanks or operators around it, so that it stays one literal"
        )
    return text


def _is_single_literal(text: str) -> bool:
    try:
        *tokens, _ = tokenize(text)
    except ConfigurationError:
        return False
    match tokens:
        case [sign, number] if sign.text in {"+", "-"}:
            return number.kind is TokenKind.NUMBER
        case [token]:
            return token.kind in {TokenKind.NUMBER, TokenKind.STRING} or token.text in {"TRUE", "FALSE"}
    return False


def _joins(neighbour: str) -> bool:
    # Next to such a character, a value could change the selector: two adjacent quotes become one literal, and
    # two minus signs begin a comment on some brokers.
    return bool(neighbour) and (neighbour in "'.+-\"$" or is_identifier_part(neighbour))
