"""Schemas proposed from messages. The expected fields and reasons are written by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.operating.schema_proposal import Proposal, propose_schema


def proposed(*bodies: Any) -> Proposal:
    messages = (
        JmsMessage.bytes(body) if isinstance(body, bytes) else JmsMessage.text(body)
        for body in (body if isinstance(body, str | bytes) else json.dumps(body) for body in bodies)
    )
    return propose_schema((f"m{number}", message) for number, message in enumerate(messages))


def many(value: Any, odd: Any) -> list[Any]:
    """Return 39 bodies with a value of `a`, then one with an odd value."""
    return [*({"a": value} for _ in range(39)), {"a": odd}]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], "a BIGINT NOT NULL"),
        ([1, None], "a BIGINT"),
        ([1, 1.5], "a DOUBLE NOT NULL"),
        ([2**63], "a DECIMAL(38,0) NOT NULL"),
        ([2**63, 1.5], "a VARIANT"),
        ([10**38], "a VARIANT"),
        ([True, False], "a BOOLEAN NOT NULL"),
        (["x"], "a STRING NOT NULL"),
        (["2026-01-31"], "a DATE NOT NULL"),
        (["2026-02-31"], "a STRING NOT NULL"),
        (["2026-01-31", "x"], "a STRING NOT NULL"),
        (["2026-01-31T10:00:00Z", "2026-01-31T10:00:00.5+01:00"], "a TIMESTAMP NOT NULL"),
        (["2026-01-31T10:00:00"], "a TIMESTAMP_NTZ NOT NULL"),
        (["2026-01-31T10:00:00", "2026-01-31T10:00:00Z"], "a TIMESTAMP NOT NULL"),
        (["2026-01-31", "2026-01-31T10:00:00Z"], "a STRING NOT NULL"),
        ([1, "x"], "a VARIANT"),
        ([None], "a VARIANT"),
        ([[1], [2, 3]], "a ARRAY<BIGINT> NOT NULL"),
        ([[]], "a ARRAY<VARIANT> NOT NULL"),
        ([[1, "x"]], "a ARRAY<VARIANT> NOT NULL"),
        ([{}], "a MAP<STRING, VARIANT> NOT NULL"),
        ([{"b": 1, "c d": "x"}, {"b": 2}], "a STRUCT<b: BIGINT NOT NULL, `c d`: STRING> NOT NULL"),
        ([[{"b": 1}, {}]], "a ARRAY<STRUCT<b: BIGINT>> NOT NULL"),
        ([{str(number): 1 for number in range(201)}], "a MAP<STRING, VARIANT> NOT NULL"),
    ],
    ids=str,
)
def test_the_type_of_a_field(values: list[Any], expected: str) -> None:
    found = proposed(*({"a": value} for value in values))
    assert found == Proposal(fields=(expected,), messages=len(values), disagreements=())


@pytest.mark.parametrize(
    ("value", "odd", "reason"),
    [
        (1, "x", "field 'a': a number in most messages, found a string"),
        ("x", {"b": 1}, "field 'a': a string in most messages, found an object"),
        ([1], ["x"], "field 'a[]': a number in most messages, found a string"),
        ({"b": True}, {"b": []}, "field 'a.b': true or false in most messages, found an array"),
        ({"b": 1}, {"b": 1, "B": 2}, "field 'a.B': most messages call it 'b'"),
        ({"b": 1}, {"b": 1, "x\x1b": 2}, "field 'a.x\\x1b': no column can have this name"),
    ],
    ids=str,
)
def test_a_message_unlike_the_others_disagrees(value: Any, odd: Any, reason: str) -> None:
    (found,) = proposed(*many(value, odd)).disagreements
    assert (found.message, found.reason) == ("m39", reason)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "the body is empty"),
        ("[1]", "expected a JSON object, found an array"),
        ("null", "expected a JSON object, found null"),
        ('{"a": 1, "a": 2}', "the body has an object with a name twice"),
        ('{"a": 1e999}', "the body has a number beyond DOUBLE"),
        ('{"a": NaN}', "the body is not JSON: it has NaN as a number"),
        ('{"a": "\\ud800"}', "the body has an escape such as \\ud800, which is half a character"),
        (b"\xff", "expected a JSON body, found bytes that are not UTF-8"),
        ("[" * 100_000, "the body has too many levels of objects and arrays"),
        ('{"_jms_x": 1}', "field '_jms_x': the name is reserved for columns of this package"),
    ],
    ids=lambda text: str(text)[:20],
)
def test_what_is_no_row_disagrees(body: str | bytes, reason: str) -> None:
    found = proposed({"a": 1}, body)
    assert [(each.message, each.reason) for each in found.disagreements] == [("m1", reason)]


def test_without_an_object_there_is_no_proposal() -> None:
    with pytest.raises(ConfigurationError, match=r"none of 1 messages .*; the first: m0: the body is empty"):
        proposed("")
    with pytest.raises(ConfigurationError, match="there are no messages"):
        proposed()


VALUES = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(max_size=3),
    lambda inner: (
        strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.text(max_size=2), inner)
    ),
    max_leaves=10,
)


@given(bodies=strategies.lists(strategies.dictionaries(strategies.text(max_size=2), VALUES), max_size=4))
def test_any_bodies_have_a_proposal_or_none(bodies: list[dict[str, Any]]) -> None:
    try:
        found = proposed(*bodies)
    except ConfigurationError:
        return
    assert all(field.isprintable() for field in found.fields)
    assert len(found.fields) <= len({name for body in bodies for name in body})
