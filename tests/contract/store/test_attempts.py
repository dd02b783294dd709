"""Attempts: the same answers from every store, and from the model whatever is asked in whatever order."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca import AttemptEntry, Store
from tests.contract.store.conftest import new_store, url_of
from tests.internals.core import Failure
from tests.internals.store import KEPT_HISTORY, SILENT_FOR, AttemptSelection, SqlStore, stored_name
from tests.memory_store import MemoryStore

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
BROKEN = Failure(class_names=("shop.Broken", "builtins.Exception"), message="no \0 stock \ud800")
HOSTILE = (
    "a",
    "a ",
    "A",
    "",
    "\0",
    "\ud800",
    "é",
    "x" * 5_000,
    "sha256:" + "0" * 64,
    "'; DROP TABLE--",
    "\n",
)


def test_each_hand_over_is_counted_for_its_activation(store: Store) -> None:
    assert store.attempts.begin("orders", ["m1", "m2", "m1"], NOON) == {"m1": 1, "m2": 1}
    assert store.attempts.begin("orders", ["m1"], NOON) == {"m1": 2}
    assert store.attempts.begin("bills", ["m1"], NOON) == {"m1": 1}
    assert store.attempts.begin("orders", [], NOON) == {}


def test_the_activations_with_counted_attempts(store: Store) -> None:
    assert store.attempts.activations() == frozenset()
    store.attempts.begin("orders", ["m1", "m2"], NOON)
    store.attempts.begin("bills", ["m1"], NOON)
    assert store.attempts.activations() == {"orders", "bills"}
    store.attempts.forget("bills", ["m1"])
    assert store.attempts.activations() == {"orders"}


def test_counts_go_on_beyond_those_of_patch_bay_p20(store: Store) -> None:
    """P20: there they end at 127."""
    for number in range(1, 131):
        assert store.attempts.begin("orders", ["m1"], NOON) == {"m1": number}


def test_the_writes_of_a_transaction_are_stored_together_or_not_at_all(store: Store) -> None:
    store.attempts.begin("orders", ["m1", "m2"], NOON)
    with suppress(ZeroDivisionError), store.transaction():
        store.attempts.forget("orders", ["m1"])
        store.attempts.take_back("orders", ["m2"])
        assert store.attempts.begin("orders", ["m1", "m3"], NOON) == {"m1": 1, "m3": 1}
        raise ZeroDivisionError
    assert sorted((each.message, each.attempts) for each in store.attempts.page()) == [("m1", 1), ("m2", 1)]
    with store.transaction():
        store.attempts.forget("orders", ["m1"])
        store.attempts.begin("orders", ["m2"], NOON)
    assert [(each.message, each.attempts) for each in store.attempts.page()] == [("m2", 2)]


def test_a_settled_message_is_forgotten_with_its_history(store: Store) -> None:
    store.attempts.begin("orders", ["m1", "m2"], NOON)
    store.attempts.begin("orders", ["m1"], NOON)
    store.attempts.forget("orders", ["m1", "unknown"])
    assert store.attempts.history("orders", "m1") == []
    assert store.attempts.begin("orders", ["m1", "m2"], NOON) == {"m1": 1, "m2": 2}


def test_what_was_not_handed_over_is_taken_back(store: Store) -> None:
    store.attempts.begin("orders", ["m1", "m2"], NOON)
    store.attempts.begin("orders", ["m2"], NOON)
    store.attempts.take_back("orders", ["m1", "m2", "unknown"])
    assert [(each.message, each.attempts) for each in store.attempts.page("orders")] == [("m2", 1)]
    assert store.attempts.begin("orders", ["m1", "m2"], NOON) == {"m1": 1, "m2": 2}


def test_the_history_says_when_where_and_why(store: Store) -> None:
    later = NOON + timedelta(minutes=1)
    store.attempts.begin("orders", ["m1"], NOON)
    store.attempts.failed("orders", {"m1": BROKEN, "unknown": BROKEN})
    store.attempts.begin("orders", ["m1"], later)
    text = "no \ufffd stock ?"
    assert store.attempts.history("orders", "m1") == [
        AttemptEntry(
            attempt=1, at=NOON, where="host/1", exception_class="shop.Broken", exception_message=text
        ),
        AttemptEntry(attempt=2, at=later, where="host/1"),
    ]
    assert store.attempts.history("orders", "unknown") == []


def test_a_long_history_keeps_the_first_attempt_and_the_latest(store: Store) -> None:
    for number in range(KEPT_HISTORY + 10):
        store.attempts.begin("orders", ["m1"], NOON + timedelta(seconds=number))
    kept = [entry.attempt for entry in store.attempts.history("orders", "m1")]
    assert kept == [1, *range(11, KEPT_HISTORY + 11)]


def test_ids_of_any_length_with_any_character_are_told_apart(store: Store) -> None:
    assert store.attempts.begin(HOSTILE[7], HOSTILE, NOON) == dict.fromkeys(HOSTILE, 1)
    assert store.attempts.begin(HOSTILE[7], HOSTILE, NOON) == dict.fromkeys(HOSTILE, 2)
    assert len({stored_name(each) for each in HOSTILE}) == len(HOSTILE)
    assert all(len(stored_name(each)) <= 200 for each in HOSTILE)


def test_the_sweep_drops_the_least_recently_seen_and_the_old_j132(store: Store) -> None:
    """J132: 5,000 messages of an activation by default; here 3."""
    for number in range(5):
        store.attempts.begin("orders", [f"m{number}"], NOON + timedelta(seconds=number))
    store.attempts.begin("orders", ["m0"], NOON + timedelta(seconds=9))
    store.attempts.begin("bills", ["b0"], NOON - timedelta(days=8))
    assert store.attempts.sweep(NOON + timedelta(seconds=10), keep=3) == 3
    assert {each.message for each in store.attempts.page()} == {"m0", "m3", "m4"}
    assert store.attempts.history("orders", "m1") == []
    assert len(store.attempts.history("orders", "m0")) == 2


def test_a_page_begins_with_the_most_attempts(store: Store) -> None:
    store.attempts.begin("orders", ["m1", "m2", "m3"], NOON)
    store.attempts.begin("orders", ["m2", "m3"], NOON + timedelta(seconds=1))
    store.attempts.begin("orders", ["m3"], NOON + timedelta(seconds=2))
    assert [each.message for each in store.attempts.page()] == ["m3", "m2", "m1"]
    assert [each.message for each in store.attempts.page(at_least=2, after=1)] == ["m2"]
    (first,) = store.attempts.page("orders", limit=1)
    assert (first.attempts, first.first_at, first.last_at, first.where) == (
        3,
        NOON,
        NOON + timedelta(seconds=2),
        "host/1",
    )


def test_many_messages_are_one_call(store: Store) -> None:
    many = [f"m{number}" for number in range(1_200)]
    assert set(store.attempts.begin("orders", many, NOON).values()) == {1}
    assert set(store.attempts.begin("orders", many, NOON).values()) == {2}
    store.attempts.failed("orders", dict.fromkeys(many, BROKEN))
    store.attempts.take_back("orders", many)
    store.attempts.forget("orders", many[:1_100])
    assert len(store.attempts.page(limit=5_000)) == 100


_MESSAGES = st.lists(st.sampled_from(["m1", "m2", "m3", "\0", "x" * 300]), max_size=4)
_STEP = st.tuples(
    st.sampled_from(["begin", "take_back", "failed", "forget", "sweep", "add", "trim"]),
    st.sampled_from(["orders", "bills"]),
    _MESSAGES,
    st.integers(0, 100),
)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_any_sequence_of_calls_leaves_what_the_model_has(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    opened = new_store(url_of(database, tmp_path, request))
    names = ["orders", "bills"]

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(st.lists(_STEP, max_size=20))
    def run(steps: list[tuple[str, str, list[str], int]]) -> None:
        stores: list[Store] = [opened, MemoryStore("host/1")]
        for name in names:
            opened.attempts.forget(name, ["m1", "m2", "m3", "\0", "x" * 300])
        opened.handled.sweep(NOON, keep=0)
        for number, (step, name, messages, second) in enumerate(steps):
            moment = NOON + timedelta(minutes=number)
            answers = [_take(each, step, name, messages, moment, second) for each in stores]
            assert answers[0] == answers[1]
        for name in names:
            assert stores[0].attempts.page(name) == stores[1].attempts.page(name)
            for message in ("m1", "m2", "m3", "\0", "x" * 300):
                assert stores[0].attempts.history(name, message) == stores[1].attempts.history(name, message)

    run()
    opened.close()


def _take(  # noqa: PLR0917 - one step of the sequence
    store: Store, step: str, name: str, messages: list[str], moment: datetime, number: int
) -> object:
    match step:
        case "begin":
            return store.attempts.begin(name, messages, moment)
        case "take_back":
            return store.attempts.take_back(name, messages)
        case "failed":
            return store.attempts.failed(name, dict.fromkeys(messages, BROKEN))
        case "forget":
            return store.attempts.forget(name, messages)
        case "sweep":
            return store.attempts.sweep(moment, keep=number % 4, max_age=timedelta(minutes=number))
        case "add":
            store.handled.add(name, messages, moment)
            return store.handled.known(name, ["m1", "m2", "m3", "m4"])
    return store.handled.sweep(moment, keep=number % 4, max_age=timedelta(minutes=number))


# -- in doubt ---------------------------------------------------------------------------------------------


def seen_from(store: Store, where: str) -> Store:
    """Return the same store as another process sees it."""
    if isinstance(store, MemoryStore):
        return store.seen_from(where)
    assert isinstance(store, SqlStore)
    return SqlStore(store.database, where=where)


def open_ones(store: Store) -> list[str]:
    return sorted(each.message for each in store.attempts.page(open_only=True))


def test_an_attempt_is_open_until_somebody_says_how_it_ended_i9(store: Store) -> None:
    """I9: received, and not settled."""
    store.attempts.begin("orders", ["settled", "failed", "vain", "again", "open"], NOON)
    store.attempts.begin("orders", ["again"], NOON)
    store.attempts.forget("orders", ["settled"])
    store.attempts.failed("orders", {"failed": BROKEN})
    store.attempts.take_back("orders", ["vain", "again"])
    assert open_ones(store) == ["open"]
    assert store.attempts.open_at() == {"host/1"}
    assert [each.open for each in store.attempts.page("orders")].count(True) == 1
    store.attempts.begin("orders", ["failed"], NOON)
    assert open_ones(store) == ["failed", "open"]


def test_what_another_process_left_open_is_doubtful_i9(store: Store) -> None:
    other = seen_from(store, "host/2")
    store.attempts.begin("orders", ["open", "failed", "own", HOSTILE[5]], NOON)
    store.attempts.begin("bills", ["bill"], NOON)
    store.attempts.failed("orders", {"failed": BROKEN})
    assert store.attempts.begin("orders", ["own"], NOON) == {"own": 2}
    assert store.attempts.doubtful("orders", ["own", "open"]) == frozenset()
    later = NOON + timedelta(minutes=1)
    other.attempts.begin("orders", ["open", "failed", "new", "bill", HOSTILE[5]], later)
    found = other.attempts.doubtful("orders", ["open", "failed", "new", "own", "bill", HOSTILE[5]])
    assert found == {"open", HOSTILE[5]}
    assert other.attempts.doubtful("orders", []) == frozenset()
    other.attempts.take_back("orders", ["open"])
    other.attempts.ended("orders")
    assert open_ones(store) == ["bill", "open", "own"]
    other.attempts.begin("orders", ["open"], later)
    assert other.attempts.doubtful("orders", ["open"]) == {"open"}


def test_who_ends_in_good_order_leaves_nothing_in_doubt(store: Store) -> None:
    other = seen_from(store, "host/2")
    store.attempts.begin("orders", ["m1", "m2"], NOON)
    store.attempts.begin("bills", ["m1"], NOON)
    other.attempts.begin("orders", ["m3"], NOON)
    store.attempts.ended("orders")
    assert [(each.activation, each.message) for each in store.attempts.page(open_only=True)] == [
        ("bills", "m1"),
        ("orders", "m3"),
    ]


def test_attempts_are_reset_and_resolved_for_one_a_selection_or_all(store: Store) -> None:
    store.attempts.begin("orders", ["m1", "m2", "m3"], NOON)
    store.attempts.begin("orders", ["m1", "m2"], NOON)
    store.attempts.begin("bills", ["m1"], NOON)
    assert store.attempts.resolve(AttemptSelection(activation="orders", message="m3")) == 1
    assert store.attempts.resolve(AttemptSelection(open_at=frozenset({"nobody"}))) == 0
    assert open_ones(store) == ["m1", "m1", "m2"]
    assert store.attempts.reset(AttemptSelection(activation="orders", message="m1")) == 1
    assert store.attempts.history("orders", "m1") == []
    assert len(store.attempts.history("orders", "m2")) == 2
    assert store.attempts.reset(AttemptSelection(at_least=2)) == 1
    assert store.attempts.reset(AttemptSelection()) == 2
    assert store.attempts.page() == []


def test_a_process_lives_as_long_as_it_is_heard_of(store: Store) -> None:
    other = seen_from(store, "host/2")
    store.owners.heartbeat(NOON)
    other.owners.heartbeat(NOON)
    both = {"host/1", "host/2"}
    assert store.owners.live({*both, "host/3"}, NOON + SILENT_FOR) == both
    store.owners.heartbeat(NOON + timedelta(seconds=1))
    assert store.owners.live(both, NOON + SILENT_FOR + timedelta(seconds=1)) == {"host/1"}
    store.owners.leave()
    other.owners.leave()
    other.owners.leave()
    assert store.owners.live(both, NOON) == frozenset()


def test_a_process_of_this_host_that_has_ended_is_dead(url: str) -> None:
    store = new_store(url)
    code = (
        "import sys; from datetime import UTC, datetime; "
        "from airflow_provider_jmsjca import open_store; "
        "open_store(sys.argv[1], where='host/2').owners.heartbeat(datetime.now(UTC))"
    )
    subprocess.run([sys.executable, "-c", code, url], check=True, timeout=60)
    store.owners.heartbeat(datetime.now(UTC))
    assert store.owners.live({"host/1", "host/2"}, datetime.now(UTC)) == {"host/1"}
    store.owners.leave()
    store.close()
