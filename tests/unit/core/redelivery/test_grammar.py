"""The redelivery handling string: J133-J142, J148, C3-C11, C14."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.redelivery import (
    Action,
    Delay,
    Delete,
    GrowingDelay,
    Move,
    MoveKind,
    MoveTarget,
    RedeliveryHandling,
)
from airflow_provider_jmsjca.errors import ConfigurationError
from tests.unit.core.texts import ANY_TEXT

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "200"))

VALID: list[tuple[str, tuple[Action, ...]]] = [
    ("", ()),
    ("   ", ()),
    (";", ()),
    ("5:1000", (Delay(5, 1000),)),
    ("5:1000; 10:5000", (Delay(5, 1000), Delay(10, 5000))),
    ("5:1000;10:5000", (Delay(5, 1000), Delay(10, 5000))),
    ("5:1000 ; 10:5000 ;", (Delay(5, 1000), Delay(10, 5000))),
    ("5: 1000", (Delay(5, 1000),)),
    ("1:0", (Delay(1, 0),)),
    ("50000000:5", (Delay(50_000_000, 5),)),
    ("1:31536000000", (Delay(1, 31_536_000_000),)),
    ("5:1000; 10:5000; 50:delete", (Delay(5, 1000), Delay(10, 5000), Delete(50))),
    ("1:delete", (Delete(1),)),
    ("50:move(queue:mydlq)", (Move(50, MoveKind.QUEUE, "mydlq"),)),
    ("50: move(topic:a.b)", (Move(50, MoveKind.TOPIC, "a.b"),)),
    ("50:move( same : $ )", (Move(50, MoveKind.SAME, "$"),)),
    ("50:move(queue:dlq$oops)", (Move(50, MoveKind.QUEUE, "dlq$oops"),)),
    ("50:move(queue:a(b),c)", (Move(50, MoveKind.QUEUE, "a(b),c"),)),
    ("50:move(queue:lookup://x/y)", (Move(50, MoveKind.QUEUE, "lookup://x/y"),)),
    ("50:move(queue:a, 60:5)", (Move(50, MoveKind.QUEUE, "a, 60:5"),)),
    (
        "3:move(queue:a, topic:b,same:c$)",
        (Move(3, MoveKind.QUEUE, "a", (MoveTarget(MoveKind.TOPIC, "b"), MoveTarget(MoveKind.SAME, "c$"))),),
    ),
    ("2:backoff(100,2,60000)", (GrowingDelay(2, 100, 2.0, 60_000),)),
    ("2:backoff(1,1000,1000,1)", (GrowingDelay(2, 1, 1000.0, 1000, 1.0),)),
    ("2:backoff( 100 , 1.5 , 60000 , 0.25 )", (GrowingDelay(2, 100, 1.5, 60_000, 0.25),)),
    (f"{5:018}:{1000:018}", (Delay(5, 1000),)),
    (f"2:backoff({100:018},{2:018},{300:018},{1:018})", (GrowingDelay(2, 100, 2.0, 300, 1.0),)),
    ("5:1000, 10:5000", (Delay(5, 1000), Delay(10, 5000))),
    ("5:1000, 50:move(queue:a,b)", (Delay(5, 1000), Move(50, MoveKind.QUEUE, "a,b"))),
    ("5:1000, 7:backoff(1,2,3), 9:delete", (Delay(5, 1000), GrowingDelay(7, 1, 2.0, 3), Delete(9))),
]

INVALID: list[tuple[str, list[str]]] = [
    ("0:5", ["character 1: the count is 0; expected 1 to 50000000"]),
    ("50000001:5", ["character 1: the count is 50000001; expected 1 to 50000000"]),
    ("5:10; 5:20", ["character 7: 5:20 repeats the count 5"]),
    ("5:10; 4:20", ["character 7: 4:20 comes after the count 5"]),
    ("5:delete; 6:10", ["character 1: 5:delete must be the last entry"]),
    ("5:move(queue:a); 6:10", ["character 1: 5:move(queue:a) must be the last entry"]),
    ("5:move(queue:)", ["character 8: the destination has no name"]),
    ("5:move()", ["character 8: '' is not a target"]),
    ("5:move(mydlq)", ["character 8: 'mydlq' is not a target; expected queue:name"]),
    ("5:move(heap:mydlq)", ["character 8: 'heap:mydlq' is not a target"]),
    ("5:move(queue:a,topic:)", ["character 16: the destination has no name"]),
    ("10:move(queue:a,topic:)", ["character 17: the destination has no name"]),
    ("5:move(queue:a,queue:a)", ["character 1: the target queue:a is named twice"]),
    ("5:move(queue:a", ["character 3: 'move(queue:a' is not an action"]),
    ("5:move(queue:a), 6:10", ["character 3: 'move(queue:a), 6:10' is not an action"]),
    ("5:destroy", ["character 3: 'destroy' is not an action; expected milliseconds, delete"]),
    ("5:DELETE", ["character 3: 'DELETE' is not an action"]),
    ("5:-1", ["character 3: '-1' is not an action"]),
    ("5:", ["character 3: '' is not an action"]),
    ("-5:10", ["character 1: '-5:10' is not an entry; expected count:action"]),
    ("\u0665:10", ["character 1: '\u0665:10' is not an entry"]),
    ("1000", ["character 1: '1000' is not an entry"]),
    ("5:1000;; 6:5", ["character 8: an entry is missing"]),
    (" ; 5:1000", ["character 2: an entry is missing"]),
    ("5:1000,", ["character 8: an entry is missing"]),
    (";1:10", ["character 1: an entry is missing"]),
    ("1:1000; 22:20, x, y", ["character 16: 'x' is not an entry", "character 19: 'y' is not an entry"]),
    ("1:1000; 3:backoff(a,b,c)", ["character 19: 'a,b,c' are not the numbers"]),
    ("1:f(a)f(b,c)", ["character 3: 'f(a)f(b,c)' is not an action"]),
    ("5:31536000001", ["character 1: the delay is 31536000001 ms; expected 0 to 31536000000 ms"]),
    (f"5:{1000:019}", ["character 3: a number has 19 digits; expected at most 18"]),
    (f"2:backoff({100:019},2,300)", ["character 11: '0000000000000000100,2,300' are not the numbers"]),
    (f"5:{'x' * 60}", [f"character 3: '{'x' * 60}' is not an action"]),
    (f"5:{'x' * 61}", [f"character 3: '{'x' * 60}…' is not an action"]),
    (f"5:{'9' * 5000}", ["character 3: a number has 5000 digits"]),
    (f"{'9' * 5000}:5", ["character 1: a number has 5000 digits"]),
    ("5:backoff(1,2)", ["character 11: '1,2' are not the numbers of backoff(initial,multiplier,maximum)"]),
    ("5:backoff(1,x,3)", ["character 11: '1,x,3' are not the numbers"]),
    ("5:backoff(0,2,3)", ["character 1: the initial delay is 0 ms; expected 1"]),
    (
        "5:backoff(0,2,0)",
        [
            "character 1: the initial delay is 0 ms; expected 1",
            "character 1: the longest delay is 0 ms; expected 1",
        ],
    ),
    ("5:backoff(9,2,3)", ["character 1: the longest delay is 3 ms, below the initial 9 ms"]),
    ("5:backoff(1,0.5,3)", ["character 1: the multiplier is 0.5; expected 1 to 1000"]),
    ("5:backoff(1,2,3,1.5)", ["character 1: the jitter is 1.5; expected 0 to 1"]),
    (
        "0:5; x:1; 3:destroy; 2:move(heap:a)",
        [
            "character 1: the count is 0",
            "character 6: 'x:1' is not an entry",
            "character 13: 'destroy' is not an action",
            "character 29: 'heap:a' is not a target",
        ],
    ),
]


@pytest.mark.parametrize(("text", "actions"), VALID, ids=[repr(text) for text, _ in VALID])
def test_j133_j138_reads(text: str, actions: tuple[Action, ...]) -> None:
    """C5, C7, C8, C11 too."""
    assert RedeliveryHandling.parse(text).actions == actions


@pytest.mark.parametrize(("text", "faults"), INVALID, ids=[repr(text[:40]) for text, _ in INVALID])
def test_j139_reports_every_fault_with_its_position(text: str, faults: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedeliveryHandling.parse(text)
    assert len(caught.value.faults) == len(faults)
    for found, expected in zip(caught.value.faults, faults, strict=True):
        assert found.startswith(f"redelivery handling, {expected}")


def test_str_is_canonical() -> None:
    text = " 5: 1000 ,10:5000;20:backoff(100, 2.0,5000,0.50) ; 50:move( queue : a b , topic:c ) ;"
    assert str(RedeliveryHandling.parse(text)) == (
        "5:1000; 10:5000; 20:backoff(100,2,5000,0.5); 50:move(queue:a b,topic:c)"
    )


@given(ANY_TEXT | st.text(alphabet="0123456789:;,. ()$movedltqutpicsakf"))
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_text_is_read_or_refused_as_configuration(text: str) -> None:
    try:
        handling = RedeliveryHandling.parse(text)
    except ConfigurationError as error:
        faults = error.faults
    else:
        assert RedeliveryHandling.parse(str(handling)) == handling
        return
    assert faults
    assert all(fault.startswith("redelivery handling, character ") for fault in faults)


NAMES = st.text(min_size=1, max_size=20).filter(
    lambda name: (
        name == name.strip(" ")
        and ";" not in name
        and not any(ord(character) < 32 or ord(character) == 127 for character in name)
        and not any(f"{kind}" in name for kind in ("queue", "topic", "same"))
        and not name.lower().startswith("jmsjca://")
    )
)
KINDS = st.sampled_from(list(MoveKind))
OPTIONS = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda key: key != "name"), st.text(max_size=8), max_size=2
)
TARGETS = st.builds(MoveTarget, KINDS, NAMES, OPTIONS.map(lambda options: tuple(options.items())))


@st.composite
def handlings(draw: st.DrawFn) -> RedeliveryHandling:
    counts = sorted(draw(st.sets(st.integers(1, 50_000_000), max_size=6)))
    actions: list[Action] = []
    for at in counts[:-1]:
        if draw(st.booleans()):
            actions.append(Delay(at, draw(st.integers(0, 31_536_000_000))))
        else:
            initial = draw(st.integers(1, 10_000))
            actions.append(
                GrowingDelay(
                    at,
                    initial,
                    draw(st.integers(100, 100_000)) / 100,
                    draw(st.integers(initial, 10_000_000)),
                    draw(st.integers(0, 1_000_000)) / 1_000_000,
                )
            )
    if counts:
        last = counts[-1]
        if draw(st.booleans()):
            targets = draw(st.lists(TARGETS, min_size=1, max_size=4, unique=True))
            actions.append(Move.to(last, targets))
        else:
            actions.append(Delete(last))
    return RedeliveryHandling(tuple(actions))


@given(handlings())
@settings(max_examples=EXAMPLES)
def test_text_form_gives_an_equal_value_back(handling: RedeliveryHandling) -> None:
    assert RedeliveryHandling.parse(str(handling)) == handling


def test_c14_separate_client_properties() -> None:
    read = RedeliveryHandling.from_client_properties
    assert read(delay="5:1000, 10:5000") == RedeliveryHandling.parse("5:1000; 10:5000")
    assert read(delay="5:1000", after=50, action="Move", move_name="dlq$") == RedeliveryHandling.parse(
        "5:1000; 50:move(same:dlq$)"
    )
    assert read(after=3, action="move", move_kind="topic", move_name="t") == RedeliveryHandling.parse(
        "3:move(topic:t)"
    )
    assert read(after=3, action="delete") == RedeliveryHandling.parse("3:delete")
    with pytest.raises(ConfigurationError, match="needs the number of deliveries"):
        read(action="delete")
    with pytest.raises(ConfigurationError, match="expected move, delete or nothing"):
        read(after=3, action="park")
    with pytest.raises(ConfigurationError, match="expected queue, topic or same"):
        read(after=3, action="move", move_kind="heap", move_name="a")


@pytest.mark.parametrize(
    ("text", "original", "targets"),
    [
        ("1:move(queue:mydlq)", Destination.queue("Queue1"), [Destination.queue("mydlq")]),
        ("1:move(queue:dlq$oops)", Destination.queue("Queue1"), [Destination.queue("dlqQueue1oops")]),
        ("1:move(queue:$-$)", Destination.topic("T"), [Destination.queue("T-T")]),
        ("1:move(same:$.dlq)", Destination.topic("T"), [Destination.topic("T.dlq")]),
        ("1:move(same:$.dlq)", Destination.queue("Q"), [Destination.queue("Q.dlq")]),
        (
            "1:move(queue:dlq_$)",
            Destination.queue("lookup://a/b/name"),
            [Destination.queue("lookup://a/b/dlq_name")],
        ),
        ("1:move(queue:$-$)", Destination.queue("lookup://n"), [Destination.queue("lookup://n-n")]),
        ("1:move(queue:dlq)", Destination.queue("lookup://a/b/name"), [Destination.queue("dlq")]),
        (
            "1:move(queue:a,topic:all)",
            Destination.queue("q"),
            [Destination.queue("a"), Destination.topic("all")],
        ),
        (
            "1:move(queue:$,topic:all,same:$)",
            Destination.queue("q"),
            [Destination.queue("q"), Destination.topic("all")],
        ),
    ],
)
def test_j135_j136_j140_move_targets(text: str, original: Destination, targets: list[Destination]) -> None:
    """C9, C10 too."""
    (move,) = RedeliveryHandling.parse(text).actions
    assert isinstance(move, Move)
    assert list(move.targets(original)) == targets


def test_a_target_may_have_options_j91() -> None:
    text = (
        "3:move(queue:jmsjca://?name=$.dlq&x-queue-type=quorum,same:jmsjca://?name=$.b&prefetch=1,topic:all)"
    )
    handling = RedeliveryHandling.parse(text)
    (move,) = handling.actions
    assert isinstance(move, Move)
    found = move.targets(Destination.queue("orders"))
    assert found == (Destination.queue("orders.dlq"), Destination.queue("orders.b"), Destination.topic("all"))
    assert [dict(each.options) for each in found] == [{"x-queue-type": "quorum"}, {"prefetch": "1"}, {}]
    assert str(handling) == text.replace("?name=$.dlq", "?name=queue://$.dlq")
    client = RedeliveryHandling.from_client_properties(
        after=3, action="move", move_kind="queue", move_name="jmsjca://?name=$.dlq&x-queue-type=quorum"
    )
    assert [str(action) for action in client.actions] == [
        "3:move(queue:jmsjca://?name=queue://$.dlq&x-queue-type=quorum)"
    ]


def test_a_target_with_options_may_be_called_topic() -> None:
    (move,) = RedeliveryHandling.parse("3:move(queue:jmsjca://?name=topic&prefetch=1)").actions
    assert move == Move(3, MoveKind.QUEUE, "topic", options=(("prefetch", "1"),))


def test_a_target_of_the_same_kind_may_be_called_like_a_queue() -> None:
    handling = RedeliveryHandling((Move(3, MoveKind.SAME, "queue://x", options=(("prefetch", "1"),)),))
    assert RedeliveryHandling.parse(str(handling)) == handling


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        (
            "queue:jmsjca://?name=topic://t",
            "the target is a queue, but its name 'topic://t' begins with topic://",
        ),
        ("queue:jmsjca://?x=1", "name is missing, expected jmsjca://?name=destination"),
        ("queue:jmsjca://dlq", "jmsjca:// needs a question mark"),
    ],
)
def test_options_that_can_not_be_read_are_refused_j91(target: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(fault)):
        RedeliveryHandling.parse(f"3:move({target})")


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.text(alphabet="0123456789:, ;", max_size=12) | st.text(max_size=8),
    st.none() | st.integers(-1, 60) | st.just(10**9),
    st.sampled_from(["", "move", "delete", " Move ", "drop"]) | st.text(max_size=5),
    st.sampled_from(["auto", "queue", "topic", "same", ""]) | st.text(max_size=5),
    st.sampled_from(["", "dlq", "dlq$", "a;b", "lookup://x/$"]) | st.text(max_size=5),
)
def test_any_client_properties_are_read_or_refused_c14(
    delay: str, after: int | None, action: str, move_kind: str, move_name: str
) -> None:
    try:
        handling = RedeliveryHandling.from_client_properties(
            delay=delay, after=after, action=action, move_kind=move_kind, move_name=move_name
        )
    except ConfigurationError:
        return
    assert RedeliveryHandling.parse(str(handling)) == handling
