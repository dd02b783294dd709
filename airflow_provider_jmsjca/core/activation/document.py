"""Reads activation specs from YAML and JSON text, and writes them as YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.escaping import escaped, escaped_lines

LONGEST_TEXT = 1 << 20


class _Loader(yaml.SafeLoader):
    """Loads plain YAML: mappings, lists, texts and null.

    Numbers are loaded as text, and the option's type converts them. YAML 1.1 would read a redelivery handling
    such as `3:25` as a sexagesimal number. Anchors are refused, because a few anchors can expand to a huge
    document.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # as PyYAML declares it

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's stubs leave it so
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.constructor.ConstructorError(
                None, None, "anchors and aliases are not supported", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, "a key that is not text, or a repeated key", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]
)


class _Dumper(yaml.SafeDumper):
    """Writes YAML that `_Loader` reads back unchanged."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # YAML has escapes for unprintable characters only between double quotes.
    style = None if all(line.isprintable() for line in text.split("\n")) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def parse_document(text: str) -> dict[str, object]:
    """Return the mapping in a YAML or JSON text.

    Raises:
        ConfigurationError: The text is neither YAML nor JSON, or not a mapping. A syntax error has line and
            column.
    """
    if len(text) > LONGEST_TEXT:
        raise ConfigurationError(f"activation spec: too long, expected at most {LONGEST_TEXT} characters")
    try:
        found = _read_json(text) if text.lstrip().startswith("{") else _read_yaml(text)
    except RecursionError:
        raise ConfigurationError("activation spec: nested too deeply, expected a flat mapping") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigurationError(
            f"activation spec: the text is {type(found).__name__}, expected a mapping of options to values"
        )
    return found


def write_yaml(values: Mapping[str, object], left_out: tuple[str, ...] = ()) -> str:
    """Return the values as YAML, in their order.

    Args:
        values: Values by name.
        left_out: Names of secrets that `values` does not contain; a comment at the beginning lists them.
    """
    head = f"# left out, because secret: {escaped(', '.join(left_out))}\n" if left_out else ""
    written = yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return head + escaped_lines(written)  # YAML has the same escapes as Python


def _read_json(text: str) -> object:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ConfigurationError("activation spec: JSON: the same key twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        # A YAML flow mapping begins with a brace too.
        try:
            return _read_yaml(text)
        except ConfigurationError:
            place = f"line {error.lineno}, column {error.colno}"
            raise ConfigurationError(f"activation spec: JSON: {error.msg} at {place}") from None
    except ValueError as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError("activation spec: JSON: a number has too many digits") from None


def _read_yaml(text: str) -> object:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  # a SafeLoader that reads even less
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigurationError(f"activation spec: YAML: {error.problem or 'not readable'}{place}") from None
    except (yaml.YAMLError, ValueError):
        raise ConfigurationError(
            "activation spec: YAML: the text contains a character that YAML doesn't allow"
        ) from None
