"""Selector templates (J178-J182): what is put in, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector import Selector, parameters_for, substitute
from airflow_provider_jmsjca.errors import ConfigurationError
from tests.unit.core.texts import ANY_TEXT

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))


@pytest.mark.parametrize(
    ("template", "parameters", "expected"),
    [
        # J179: parameters and the escape
        ("s = '${subscribername}'", {"subscribername": "x47"}, "s = 'x47'"),
        ("s = '$${subscribername}'", {"subscribername": "x47"}, "s = '${subscribername}'"),
        ("s = '$$$${subscribername}'", {"subscribername": "x47"}, "s = '$${subscribername}'"),
        ("s = '$$${subscribername}'", {"subscribername": "x47"}, "s = '$x47'"),
        ("$x = 1 AND a$$b = 2", {}, "$x = 1 AND a$b = 2"),
        ("", {"a": "b"}, ""),
        # J181: unresolved ones stay
        ("s = '${unknown}'", {"subscribername": "x"}, "s = '${unknown}'"),
        ("n = ${unknown}", {}, "n = ${unknown}"),
        ("${andselector}", {}, "${andselector}"),
        ("s = '${'", {"a": "b"}, "s = '${'"),
        ("s = '${}'", {"a": "b"}, "s = '${}'"),
        # J180: whole selectors
        ("${selector}", {"selector": "a = 1 or b = 2"}, "a = 1 or b = 2"),
        ("x = 1 ${andselector}", {"selector": "a = 1"}, "x = 1 and (a = 1)"),
        ("x = 1 ${andselector}", {"selector": ""}, "x = 1 "),
        ("x = 1 ${andselector}", {"selector": "  "}, "x = 1 "),
        ("${selectorand} x = 1", {"selector": "a = 1"}, "(a = 1) and x = 1"),
        ("${selectorand} x = 1", {"selector": ""}, " x = 1"),
        ("x = 1 and (${selector})", {"selector": "a = 1 or b = 2"}, "x = 1 and (a = 1 or b = 2)"),
        ("x = 1 and ${selector}", {"selector": "a = 1"}, "x = 1 and a = 1"),
        ("x = 1 and ${selector}", {"selector": "a = 1 or b = 2"}, "x = 1 and (a = 1 or b = 2)"),
        ("(${selector} and x = 1)", {"selector": "a = 1 or b = 2"}, "((a = 1 or b = 2) and x = 1)"),
        ("(x = 1 and ${selector})", {"selector": "a = 1 or b = 2"}, "(x = 1 and (a = 1 or b = 2))"),
        ("not ${selector}", {"selector": "a = 1 and b = 2"}, "not (a = 1 and b = 2)"),
        # J182: the published examples
        (
            "(sub = null or sub = '${subscribername}')",
            {"subscribername": "sub47"},
            "(sub = null or sub = 'sub47')",
        ),
        (
            "(sub = null or sub = '${subscribername}') ${andselector}",
            {"subscribername": "sub47", "selector": "msgtype = 1"},
            "(sub = null or sub = 'sub47') and (msgtype = 1)",
        ),
        (
            "${selectorand} (sub = null or sub = '${subscribername}')",
            {"subscribername": "sub47", "selector": "msgtype = 1"},
            "(msgtype = 1) and (sub = null or sub = 'sub47')",
        ),
        # Quotes are doubled inside literals
        ("s = '${v}'", {"v": "it's"}, "s = 'it''s'"),
        ("s = '${v}'", {"v": "' OR 'a' = 'a"}, "s = ''' OR ''a'' = ''a'"),
        ("s = 'it''s ${v}!'", {"v": "'"}, "s = 'it''s ''!'"),
        ("s = '${v}${v}'", {"v": "'"}, "s = ''''''"),
        ("s LIKE '${v}%'", {"v": "a"}, "s LIKE 'a%'"),
        ("s = '${v}'", {"v": 5}, "s = '5'"),
        # Outside of them one literal is fine
        ("n = ${v}", {"v": "5"}, "n = 5"),
        ("n = ${v}", {"v": "-5"}, "n = -5"),
        ("n = ${v}", {"v": 5}, "n = 5"),
        ("n = ${v}", {"v": 2.5}, "n = 2.5"),
        ("n = ${v}", {"v": True}, "n = TRUE"),
        ("n = ${v} ", {"v": "'it''s'"}, "n = 'it''s' "),
        ("n in (${v})", {"v": "'a'"}, "n in ('a')"),
        ("n=${v}", {"v": "0x1F"}, "n=0x1F"),
        # What was put in isn't looked through again
        ("s = '${a}'", {"a": "${b}", "b": "x"}, "s = '${b}'"),
        ("s = '${a}'", {"a": "$$"}, "s = '$$'"),
    ],
)
def test_substituted(template: str, parameters: Mapping[str, Any], expected: str) -> None:
    """J179, J180, J181, J182."""
    assert substitute(template, parameters) == expected


@pytest.mark.parametrize(
    ("template", "parameters", "text"),
    [
        ("s = ${v}", {"v": "eu"}, "position 5: parameter 'v': expected one literal"),
        ("s = ${v}", {"v": "1 OR TRUE"}, "expected one literal"),
        ("s = ${v}", {"v": "'a' OR 'b' = 'b'"}, "expected one literal"),
        ("s = ${v}", {"v": "(1)"}, "expected one literal"),
        ("s = ${v}", {"v": ""}, "expected one literal"),
        ("s = ${v}", {"v": "NULL"}, "expected one literal"),
        ("s = ${v}", {"v": "- - 1"}, "expected one literal"),
        ("s = ${v}", {"v": "1 -- 2"}, "expected one literal"),
        ("s = ${v}", {"v": "'a"}, "expected one literal"),
        ("s = ${v}", {"v": float("nan")}, "expected one literal"),
        ("${v} = 1", {"v": "region"}, "expected one literal"),
        ("a${v} = 1", {"v": "5"}, "expected blanks or operators around it"),
        ("${v}5 = 1", {"v": "5"}, "expected blanks or operators around it"),
        ("s = 'a'${v}", {"v": "'b'"}, "expected blanks or operators around it"),
        ("s = ${v}'a'", {"v": "'b'"}, "expected blanks or operators around it"),
        ("n = 5-${v}", {"v": "-5"}, "expected blanks or operators around it"),
        ("n = 5.${v}", {"v": "5"}, "expected blanks or operators around it"),
        ("s = '${selector}'", {"selector": "a = 1"}, "position 6: .*whole selector, expected it outside"),
        ("s = '${andselector}'", {"selector": "a = 1"}, "outside string literals"),
        ("x = 1 ${andselector}", {"selector": "a = 1) or (TRUE"}, "parameter 'selector': message selector"),
        ("x = 1 ${andselector}", {"selector": "a ="}, "parameter 'selector': message selector, position 4"),
        ("${selector}", {"selector": "'x'"}, "parameter 'selector'"),
    ],
)
def test_refused(template: str, parameters: Mapping[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        substitute(template, parameters)


def test_the_published_example_selects_what_it_is_meant_to() -> None:
    """J182: messages for subscriber sub47 or for nobody in particular, of type 1."""
    text = substitute(
        "(sub = null or sub = '${subscribername}') ${andselector}",
        {"subscribername": "sub47", "selector": "msgtype = 1"},
    )
    selector = Selector.parse(text)
    assert selector.matches(JmsMessage.empty({"msgtype": 1}))
    assert selector.matches(JmsMessage.empty({"msgtype": 1, "sub": "sub47"}))
    assert not selector.matches(JmsMessage.empty({"msgtype": 1, "sub": "sub48"}))
    assert not selector.matches(JmsMessage.empty({"msgtype": 2, "sub": "sub47"}))


def test_configured_parameters_have_the_names_that_the_template_gives_them() -> None:
    """J181: case doesn't tell them apart; what isn't configured, or not named, is no parameter."""
    template = "s = '${Sub}' AND t = '${SUB}' AND u = '${unknown}' AND p = '$${price}' AND v = '${}'"
    values = {"sub": "x47", "price": "5", "other": "y", "": "z"}
    assert parameters_for(template, values) == {"Sub": "x47", "SUB": "x47"}


def test_the_environment_can_serve_as_parameters() -> None:
    """J181: a caller may pass any mapping."""
    assert substitute("s = '${HOME}'", os.environ | {"HOME": "/home/x"}) == "s = '/home/x'"


@given(st.text())
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_value_in_a_literal_selects_itself_and_nothing_else(value: str) -> None:
    selector = Selector.parse(substitute("s = '${v}'", {"v": value}))
    message = JmsMessage(body_kind=JmsMessage.empty().body_kind, properties={"s": value})
    assert selector.matches(message)
    other = JmsMessage(body_kind=JmsMessage.empty().body_kind, properties={"s": value + "x"})
    assert not selector.matches(other)


fragments = st.lists(
    st.sampled_from(
        ["'", "''", " OR ", "TRUE", "1", "-", "--", ")", "(", "a", "=", ".5", "E1", "'x'", "$", "${v}"]
    ),
    max_size=8,
).map("".join)


@given(fragments | st.text())
@settings(max_examples=EXAMPLES, deadline=None)
def test_no_value_outside_literals_changes_the_structure(value: str) -> None:
    try:
        text = substitute("FALSE AND n = ${v}", {"v": value})
    except ConfigurationError:
        return
    assert not Selector.parse(text).matches(JmsMessage.empty({"n": 1, "a": True}))


@given(ANY_TEXT | fragments, st.dictionaries(st.sampled_from(["v", "selector"]), ANY_TEXT | fragments))
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_template_gives_text_or_a_configuration_error(template: str, parameters: dict[str, str]) -> None:
    try:
        result = substitute(template, parameters)
    except ConfigurationError:
        return
    assert isinstance(result, str)
