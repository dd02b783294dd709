"""Activation specs as YAML and JSON: J46-J64, J148."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.errors import ConfigurationError
from tests.unit.core.texts import ANY_TEXT

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))

YAML = """\
# orders
destination: [queue://a, queue://b]
RedeliveryHandling: 3:25          # YAML 1.1 would make 205 of it
batch_size: 10
ConcurrencyMode: sync
HoldUntilAck: 1
batch_timeout: 1.5
context_name: 2026-01-01
username: null
non_retryable:
  - ValueError
dead_letter_destination: dlq
options:
  a: 'yes'
"""


def test_reads_yaml() -> None:
    spec = ActivationSpec.from_yaml(YAML)
    assert spec == ActivationSpec(
        destination=["queue://a", "queue://b"],
        redelivery_handling="3:25",
        batch_size=10,
        concurrency_mode="sync",
        hold_until_ack=True,
        batch_timeout=timedelta(seconds=1.5),
        context_name="2026-01-01",
        non_retryable="ValueError",
        dead_letter_destination="dlq",
        options="a=yes",
    )


def test_reads_json() -> None:
    text = json.dumps(
        {"destination": "q", "destinationType": "javax.jms.Queue", "BatchSize": 10, "ConcurrencyMode": "cc"}
    )
    assert ActivationSpec.from_json(text) == ActivationSpec(
        destination="queue", destination_type="queue", batch_size=10, concurrency_mode="cc"
    ).replace(destination="q")
    assert ActivationSpec.model_validate_json(text) == ActivationSpec.from_yaml(text)


def test_writes_what_was_given_under_our_names() -> None:
    spec = ActivationSpec(
        destination="q",
        destinationType="javax.jms.Queue",
        HoldUntilAck="1",
        ConcurrencyMode="CC",
        **{"jms-polling-interval-seconds": 20, "Options": "a=b"},
    )
    assert spec.to_yaml() == (
        "destination: q\n"
        "destination_type: queue\n"
        "hold_until_ack: true\n"
        "concurrency_mode: cc\n"
        "polling_interval: 20s\n"
        "options: a=b\n"
    )


def test_secrets_are_left_out_and_named() -> None:
    spec = ActivationSpec(destination="queue://q", password="p", connection_url="stomp://u:p@h")
    assert spec.to_yaml() == "# left out, because secret: password, connection_url\ndestination: queue://q\n"
    assert ActivationSpec.from_yaml(spec.to_yaml(secrets=True)) == spec


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "the text is NoneType, expected a mapping"),
        ("- a", "the text is list, expected a mapping"),
        ("a: &x 1\nb: *x", "anchors and aliases are not supported at line 1, column 4"),
        ("a: 1\na: 2", "a key that is not text, or a repeated key at line 2, column 1"),
        ("a: !!python/object:os.system 1", "YAML: could not determine a constructor"),
        ("a: [", "YAML: "),
        ("{", "JSON: "),
        ('{"a": 1, "a": 2}', "JSON: the same key twice"),
        ("a: \x00", "a character that YAML doesn't allow"),
        ("[" * 5000, "nested too deeply"),
        ("bach_size: 3", "bach_size: unknown option (did you mean batch_size?)"),
        ("x" * (1 << 21), "expected at most 1048576"),
        ("? [a]\n: b", "a key that is not text"),
    ],
)
def test_refuses(text: str, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ActivationSpec.from_yaml(text)
    assert fault in str(caught.value)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    ANY_TEXT | st.text(alphabet="destination: q{}[]\"'&*!|>-?\n#,").map("destination: queue://q\n{}".format)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert ActivationSpec.from_yaml(text).destination


def test_a_destination_with_a_separator_in_its_name_is_written_as_a_list() -> None:
    spec = ActivationSpec(destination=["queue://a;b"])
    assert spec.to_yaml() == "destination:\n- queue://a;b\n"
    assert ActivationSpec.from_yaml(spec.to_yaml()).destination == ("queue://a;b",)


@pytest.mark.parametrize("break_", ["\x85", "\u2028", "\u2029", "\n", "\r", "\ufeff", "\x7f", "\u00a0"])
def test_what_yaml_takes_for_a_line_end_is_written_so_that_it_is_read_back(break_: str) -> None:
    spec = ActivationSpec(destination=[f"queue://a{break_}b"], context_name=f"x{break_}{break_} y")
    assert ActivationSpec.from_yaml(spec.to_yaml()) == spec


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["destination", "BatchSize", "options", "RedeliveryHandling", "HoldUntilAck"]),
        _JSON,
        max_size=3,
    ),
    st.integers(0, 40),
    st.sampled_from(["", "", "", ""]) | st.text(alphabet='{}[]",:0123456789eE.-\\u', max_size=4),
)
def test_any_json_is_read_or_refused(fields: dict[str, object], place: int, broken: str) -> None:
    """Whole, and with something put into it."""
    text = json.dumps(fields)
    with contextlib.suppress(ConfigurationError):
        assert ActivationSpec.from_json(text[:place] + broken + text[place:]).destination
