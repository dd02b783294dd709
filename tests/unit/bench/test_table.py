"""The verdicts of the benchmark: what is measured against what, and that nothing is missing silently."""

from __future__ import annotations

from tests.bench import table
from tests.bench.rates import (
    BARE,
    INDIVIDUAL,
    INDIVIDUAL_SEVERAL,
    JAVA,
    LISTENER,
    LISTENER_BATCH,
    LISTENER_BATCH_FEW,
    LISTENER_BATCH_SEVERAL,
    LISTENER_CC,
    LISTENER_STORED,
    OURS,
    PLAIN,
    PUBLISH,
    PUBLISH_BULK,
    PUBLISH_BYTES,
    PUBLISH_BYTES_BULK,
    SEALED,
    TRANSACTED,
    Measured,
)


def measured(what: str, who: str, *rates: float) -> list[Measured]:
    return [Measured(what=what, who=who, per_second=rate, client=rate / 1000, broker=1) for rate in rates]


OUR_ROUNDS = [
    *measured(PUBLISH, OURS, 900, 10, 5000),
    *measured(PUBLISH_BYTES, OURS, 890),
    *measured(PUBLISH_BULK, OURS, 901, 1, 90),
    *measured(PUBLISH_BYTES_BULK, OURS, 910),
    *measured(INDIVIDUAL, OURS, 999),
    *measured(LISTENER, OURS, 1500),
    *measured(LISTENER_CC, OURS, 790),
    *measured(LISTENER_BATCH, OURS, 1000),
    *measured(LISTENER_BATCH_FEW, OURS, 48),
    *measured(LISTENER_BATCH_SEVERAL, OURS, 47),
    *measured(LISTENER_STORED, OURS, 740),
    *measured(TRANSACTED, OURS, 80),
    *measured(SEALED, OURS, 11_999),
]
PLAIN_ROUNDS = [*measured(INDIVIDUAL, PLAIN, 1000)]
JAVA_ROUNDS = [
    *measured(PUBLISH, JAVA, 1000, 10, 1),
    *measured(PUBLISH_BYTES, JAVA, 1000),
    *measured(INDIVIDUAL, JAVA, 2000),
    *measured(INDIVIDUAL_SEVERAL, JAVA, 1000),
    *measured(TRANSACTED, JAVA, 100),
]

BARE_PUBLISH = (
    "a bare socket reaches 1.00 x Java client;",
    "we reach 1.80 x bare socket; by processor time 1.00 x and 0.78 x",
)
BARE_THREADS = (
    f"a bare socket reaches 0.85 x Java client ({INDIVIDUAL_SEVERAL});",
    "we reach 0.92 x bare socket; by processor time 1.08 x and 1.03 x",
)


def test_the_median_of_the_rounds_counts_for_each_figure() -> None:
    found = table.medians(OUR_ROUNDS)
    assert (found[PUBLISH, OURS].per_second, found[PUBLISH, OURS].client) == (900, 0.9)


def test_each_goal_of_the_issue_is_judged() -> None:
    assert list(table.verdicts([*OUR_ROUNDS, *PLAIN_ROUNDS, *JAVA_ROUNDS], {})) == [
        (True, f"  met           {PUBLISH_BULK}: 0.90 x, goal 0.9 x Java client ({PUBLISH})"),
        (True, f"  met           {PUBLISH_BYTES_BULK}: 0.91 x, goal 0.9 x Java client ({PUBLISH_BYTES})"),
        (True, f"  met           {PUBLISH}: 1.00 x, goal 0.9 x Java client"),
        (False, f"  NOT MET       {PUBLISH_BYTES}: 0.89 x, goal 0.9 x Java client"),
        (False, f"  NOT MET       {INDIVIDUAL}: 0.99 x, goal 1 x stomp.py"),
        (False, f"  NOT MET       {LISTENER}: 0.75 x, goal 0.8 x Java client ({INDIVIDUAL})"),
        (True, f"  met           {LISTENER}: 1.50 x, goal 1.5 x stomp.py ({INDIVIDUAL})"),
        (False, f"  NOT MET       {LISTENER_CC}: 0.79 x, goal 0.8 x Java client ({INDIVIDUAL_SEVERAL})"),
        (True, f"  met           {LISTENER_BATCH}: 12.50 x, goal 0.6 x ours ({TRANSACTED})"),
        (True, f"  met           {LISTENER_BATCH_FEW}: 0.60 x, goal 0.6 x ours ({TRANSACTED})"),
        (False, f"  NOT MET       {LISTENER_BATCH_SEVERAL}: 0.58 x, goal 0.6 x ours ({TRANSACTED})"),
        (False, f"  NOT MET       {LISTENER_STORED}: 0.74 x, goal 0.75 x ours ({LISTENER_BATCH})"),
        (True, f"  met           {TRANSACTED}: 0.80 x, goal 0.8 x Java client"),
        (False, f"  NOT MET       {SEALED}: 11,999/s, goal 12,000/s"),
    ]


def test_a_rival_that_did_not_run_is_named_with_the_reason() -> None:
    verdicts = list(table.verdicts([*OUR_ROUNDS, *PLAIN_ROUNDS], {JAVA: "no Java 17 or newer"}))
    assert [met for met, _ in verdicts] == [None] * 4 + [
        False,
        None,
        True,
        None,
        True,
        True,
        False,
        False,
        None,
        False,
    ]
    assert verdicts[2][1] == (
        f"  not measured  {PUBLISH}: goal 0.9 x Java client; Java client is missing: no Java 17 or newer"
    )


def test_what_a_bare_socket_reaches_is_the_bound() -> None:
    bare = [*measured(PUBLISH, BARE, 500, 10, 4), *measured(LISTENER_CC, BARE, 850)]
    assert list(table.bounds([*OUR_ROUNDS, *JAVA_ROUNDS, *bare])) == [
        f"  bound         {PUBLISH}: {' '.join(BARE_PUBLISH)}",
        f"  bound         {LISTENER_CC}: {' '.join(BARE_THREADS)}",
    ]
    assert not list(table.bounds([*OUR_ROUNDS, *bare]))
