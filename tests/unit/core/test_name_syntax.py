"""How brokers read names: what is sent to a name, and whether that comes back to another one."""

from __future__ import annotations

import fnmatch
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.name_syntax import LITERAL, NameSyntax
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.stomp.dialects.activemq import ActiveMqDialect
from airflow_provider_jmsjca.transports.stomp.dialects.artemis import ArtemisDialect
from airflow_provider_jmsjca.transports.stomp.dialects.rabbitmq import RabbitMqDialect

ACTIVEMQ, ARTEMIS, RABBITMQ = ActiveMqDialect.names, ArtemisDialect.names, RabbitMqDialect.names


def destination(text: str) -> Destination:
    return Destination.parse(text)


@pytest.mark.parametrize(
    ("names", "target", "source"),
    [
        (LITERAL, "q", "q"),
        (ACTIVEMQ, "q", "q?consumer.exclusive=true"),
        (ACTIVEMQ, "q?consumer.exclusive=true.dlq", "q?consumer.exclusive=true"),
        (ACTIVEMQ, "q", "a,q?x=y"),
        (ACTIVEMQ, "a, q", "q"),
        (ACTIVEMQ, "a,/queue/q", "q"),
        (ACTIVEMQ, "a,/topic/t", "topic://t"),
        (ACTIVEMQ, "t.dlq", "t.>"),
        (ACTIVEMQ, "t", "t.>"),
        (ACTIVEMQ, "t.a.dlq", "t.*.dlq"),
        (ACTIVEMQ, "t.*", "t.a"),
        (ACTIVEMQ, "topic://VirtualTopic.x", "Consumer.A.VirtualTopic.x"),
        (ACTIVEMQ, "topic://VirtualTopic.x.y", "Consumer.A.VirtualTopic.>"),
        (ARTEMIS, "a", "a::q"),
        (ARTEMIS, "a::q", "a::q"),
        (ARTEMIS, "a::q.dlq", "a"),
        (ARTEMIS, "topic://a", "a::q"),
        (ARTEMIS, "v.dlq", "v.#"),
        (ARTEMIS, "v.a.dlq", "v.*.dlq"),
        (RABBITMQ, "topic://a.#.dlq", "topic://a.#"),
        (RABBITMQ, "a*b", "a*b"),
    ],
)
def test_what_is_sent_comes_back(names: NameSyntax, target: str, source: str) -> None:
    assert names.reaches(destination(target), destination(source))
    with pytest.raises(ConfigurationError, match="would be received from"):
        names.check_target(destination(target), destination(source), "the broker")


@pytest.mark.parametrize(
    ("names", "target", "source"),
    [
        (LITERAL, "q?x=y", "q"),
        (LITERAL, "topic://q", "q"),
        (ACTIVEMQ, "q.dlq", "q?consumer.exclusive=true"),
        (ACTIVEMQ, "topic://q", "q"),
        (ACTIVEMQ, "a,b", "c,d"),
        (ACTIVEMQ, "queue://a,queue://q", "q"),
        (ACTIVEMQ, "u.dlq", "t.>"),
        (ACTIVEMQ, "t.a.b", "t.*"),
        (ACTIVEMQ, "ta", "t*"),
        (ACTIVEMQ, "topic://VirtualTopic.x.dlq", "Consumer.A.VirtualTopic.x"),
        (ACTIVEMQ, "VirtualTopic.x", "Consumer.A.VirtualTopic.x"),
        (ARTEMIS, "q?x=y", "q"),
        (ARTEMIS, "a,q", "q"),
        (ARTEMIS, "b", "a::q"),
        (ARTEMIS, "a::dlq", "a::q"),
        (RABBITMQ, "a.b", "a.#"),
        (RABBITMQ, "topic://b.a", "topic://a.#"),
        (RABBITMQ, "q?x=y", "q"),
    ],
)
def test_what_is_sent_stays_away(names: NameSyntax, target: str, source: str) -> None:
    assert not names.reaches(destination(target), destination(source))
    names.check_target(destination(target), destination(source), "the broker")


@pytest.mark.parametrize(
    ("names", "made", "source", "expected"),
    [
        (
            ACTIVEMQ,
            "dlq.q?consumer.exclusive=true",
            "q?consumer.exclusive=true",
            "options; expected the whole name, or the source as jmsjca://?name=queue://q&OPTION=VALUE",
        ),
        (ACTIVEMQ, "dlq.a,b", "a,b", "these are several destinations; expected the whole name"),
        (ACTIVEMQ, "dlq.a,b?x=y", "a,b?x=y", "options; expected the whole name"),
        (ACTIVEMQ, "t.>.dlq", "t.>", "this is a wildcard; expected the whole name"),
        (ARTEMIS, "a::q.dlq", "a::q", "this is a queue of an address; expected the whole name"),
    ],
)
def test_no_name_is_made_of_one_that_is_not_literal(
    names: NameSyntax, made: str, source: str, expected: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        names.check_derived(destination(made), destination(source), "the broker")
    assert str(caught.value).endswith(expected)


@pytest.mark.parametrize(
    ("names", "made", "source"),
    [
        (RABBITMQ, "a.#.dlq", "topic://a.#"),
        (RABBITMQ, "q?x=y.dlq", "q?x=y"),
        (ARTEMIS, "a,b.dlq", "a,b"),
        (ACTIVEMQ, "LOADBALQ_prices.>_s", "topic://prices.>"),
        (ACTIVEMQ, "q.a,q.b", "q"),
    ],
)
def test_a_name_that_is_literal_may_be_made_of_another(names: NameSyntax, made: str, source: str) -> None:
    names.check_derived(destination(made), destination(source), "the broker")


@pytest.mark.parametrize(
    ("names", "found", "source", "home"),
    [
        (ACTIVEMQ, "topic://VirtualTopic.x", "Consumer.A.VirtualTopic.x", "Consumer.A.VirtualTopic.x"),
        (ACTIVEMQ, "q", "q?x=y", "q?x=y"),
        (ACTIVEMQ, "b", "a,b", "b"),
        (ACTIVEMQ, "t.a", "t.>", "t.a"),
        (ACTIVEMQ, "c", "a,b", None),
        (ACTIVEMQ, None, "a,b", None),
        (ACTIVEMQ, "t.*", "t.>", None),
        (ARTEMIS, "a", "a::q", "a::q"),
        (ARTEMIS, "v.a", "v.#", None),
    ],
)
def test_a_message_goes_back_to_one_destination(
    names: NameSyntax, found: str | None, source: str, home: str | None
) -> None:
    given = None if found is None else destination(found)
    assert names.home(given, destination(source)) == (None if home is None else destination(home))


WORDS = ("a", "b", "*", "#")
SHORT = [list(each) for length in range(1, 4) for each in itertools.product("ab", repeat=length)]


def matches(pattern: list[str], name: list[str]) -> bool:
    """Match words as `fnmatch` does characters: by another algorithm than the one under test."""
    if "#" not in pattern:
        return len(pattern) == len(name) and all(map(fnmatch.fnmatchcase, name, pattern))
    at = pattern.index("#")
    return any(
        matches([*pattern[:at], *["*"] * count, *pattern[at + 1 :]], name) for count in range(len(name) + 1)
    )


@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3),
)
def test_two_patterns_meet_if_a_name_matches_both(left: list[str], right: list[str]) -> None:
    names = [
        [],
        *SHORT,
        *(list(each) for length in (4, 5, 6) for each in itertools.product("ab", repeat=length)),
    ]
    both = any(matches(left, name) and matches(right, name) for name in names)
    found = ARTEMIS.reaches(Destination.queue(".".join(left)), Destination.queue(".".join(right)))
    assert found == both
