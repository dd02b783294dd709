"""Limbo: the same answers from every store, and each message sent by one process at a time."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import Engine, create_engine, event, text

from airflow_provider_jmsjca import (
    ConfigurationError,
    Destination,
    JmsMessage,
    LimboSelection,
    LimboState,
    Store,
    open_store,
)
from tests.internals.core import Failure
from tests.internals.store import EVERYTHING, LimboEntry, SqlStore

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOSTILE = JmsMessage.text("no \0 body '; DROP TABLE", {"a": "é \0", "n": 7}, correlation_id="c")
LONG = JmsMessage.text("x" * 1_000_000, {"long": "é" * 9_000}, reply_to=Destination.queue("q" * 600))
ORDER = LimboEntry(
    jms_conn_id="jms_default",
    destination="queue://orders",
    message=JmsMessage.text("1"),
    due_at=NOON,
)
BROKEN = Failure(class_names=("shop.Broken",), message="no")


def put(store: Store, *due: int, **changes: Any) -> list[int]:
    entries = [replace(ORDER, due_at=NOON + each * SECOND, **changes) for each in due]
    return store.limbo.put(entries, NOON - SECOND)


def lease(store: Store, at: int, owner: str = "one", *, limit: int = 10, **choice: Any) -> list[int]:
    now = NOON + at * SECOND
    leased = store.limbo.lease(now, owner=owner, until=now + 60 * SECOND, limit=limit, **choice)
    return [each.number for each in leased]


def take_over(store: Store, at: int, **choice: Any) -> dict[str, list[int]]:
    now = NOON + at * SECOND
    found = store.limbo.take_over(now, until=now + 60 * SECOND, **choice)
    return {owner: [each.number for each in messages] for owner, messages in found.items()}


def test_a_destination_is_found_whatever_its_options_are(store: Store) -> None:
    written = "jmsjca://?name=queue://orders&x-queue-type=quorum"
    found = put(store, 0, 1) + put(store, 2, destination=written)
    put(store, 3, destination="jmsjca://?name=queue://orders2&x-queue-type=quorum")
    page = store.limbo.page(LimboSelection(destination="queue://orders"))
    assert [each.number for each in page] == found


@pytest.mark.parametrize("message", [HOSTILE, LONG], ids=["hostile", "long"])
def test_a_message_is_kept_whole(store: Store, message: JmsMessage) -> None:
    """P20: in Patch Bay a property has 250 characters at most."""
    (number,) = store.limbo.put([replace(ORDER, message=message, activation="x" * 300)], NOON)
    assert store.limbo.contents([number, number + 1]) == {number: message}
    (listed,) = store.limbo.page()
    assert (listed.number, listed.state, listed.put_at) == (number, LimboState.WAITING, NOON)


def test_the_activations_that_messages_are_here_of(store: Store) -> None:
    store.limbo.put([replace(ORDER, activation=name) for name in ("orders", "orders", "bills")], NOON)
    assert store.limbo.activations() == {"orders", "bills"}


def test_none_is_leased_before_it_is_due_and_the_first_due_comes_first_p18(store: Store) -> None:
    """P18: a delayed message is never sooner than its date."""
    late, soon, now = put(store, 9, 5, 0)
    assert lease(store, -1) == []
    assert lease(store, 8) == [now, soon]
    assert lease(store, 9) == [late]


def test_a_lease_keeps_others_away(store: Store) -> None:
    first, second = put(store, 0, 1)
    assert lease(store, 2, limit=1) == [first]
    assert lease(store, 2, "two") == [second]
    assert lease(store, 99, "three") == []
    assert store.limbo.sent("one", [first, second, 99]) == 1
    assert store.limbo.sent("two", [first, second]) == 1
    assert store.limbo.page() == []
    assert store.limbo.contents([first]) == {}


def test_who_takes_over_when_a_lease_has_run_out_speaks_for_the_owner(store: Store) -> None:
    first, second, late = put(store, 0, 1, 500)
    (other,) = put(store, 0, jms_conn_id="other")
    assert lease(store, 2, leave={"other"}) == [first, second]
    assert lease(store, 3, "two") == [other]
    assert take_over(store, 61) == {}
    assert take_over(store, 62) == {"one": [first, second]}
    assert take_over(store, 63, leave={"other"}) == {}
    assert take_over(store, 63) == {"two": [other]}
    assert lease(store, 121, "three") == [], "nobody has said what became of them"
    assert take_over(store, 122) == {"one": [first, second]}, "whoever took them over was killed too"
    assert store.limbo.sent("one", [first]) == 1
    store.limbo.give_back("one", [first, second])
    assert lease(store, 122, "three") == [second]
    assert [each.number for each in store.limbo.page()] == [second, late, other]


def test_messages_of_private_connections_are_left_to_those_who_name_them(store: Store) -> None:
    """A process without Airflow has put them there: Airflow doesn't know how to connect."""
    (airflow,) = put(store, 0)
    (private,) = put(store, 0, jms_conn_id="@stomp://broker:61613")
    (other,) = put(store, 0, jms_conn_id="@stomp://other:61613")
    assert lease(store, 1) == [airflow]
    assert lease(store, 1, "two", connections={"@stomp://broker:61613"}) == [private]
    assert take_over(store, 61) == {"one": [airflow]}
    assert take_over(store, 61, connections={"@stomp://broker:61613"}) == {"two": [private]}
    assert lease(store, 61, "three", connections={"@stomp://other:61613"}) == [other]


def test_a_number_is_never_given_twice(store: Store) -> None:
    (first,) = put(store, 0)
    lease(store, 0)
    store.limbo.sent("one", [first])
    assert put(store, 0) > [first]


def test_a_message_that_came_again_takes_its_own_place(store: Store) -> None:
    (first,) = put(store, 0, activation="orders", key="k")
    (other,) = put(store, 0, activation="bills", key="k")
    plain = put(store, 0, 0, activation="orders")
    (again,) = put(store, 5, activation="orders", key="k", again=True)
    assert first != again
    assert lease(store, 1) == [other, *plain]
    assert lease(store, 5) == [again]
    assert store.limbo.contents([first]) == {}


def test_two_messages_that_say_the_same_stand_beside_each_other(store: Store) -> None:
    """Where a producer repeats itself, id and all, one must not push the other out."""
    one, other = put(store, 0, 0, activation="orders", key="k")
    (again,) = put(store, 0, activation="orders", key="k", again=True)
    assert lease(store, 1) == [one, again]
    assert store.limbo.contents([other]) == {}


def test_connections_that_rest_are_left(store: Store) -> None:
    (mine,) = put(store, 0)
    (other,) = put(store, 0, jms_conn_id="other")
    assert lease(store, 1, leave={"jms_default"}) == [other]
    assert lease(store, 1, leave={"other"}) == [mine]


def test_what_was_not_tried_is_given_back_as_it_was(store: Store) -> None:
    (number,) = put(store, 0)
    lease(store, 0)
    store.limbo.give_back("two", [number])
    assert lease(store, 0) == []
    store.limbo.give_back("one", [number])
    assert lease(store, 0) == [number]
    assert store.limbo.page()[0].tries == 0


def test_a_failed_try_counts_and_at_the_end_the_message_stays_p16(store: Store) -> None:
    """P16: after its tries a message stays in the tables."""
    (number,) = put(store, 0)
    lease(store, 0)
    store.limbo.give_back("one", [number], due_at=NOON + 2 * SECOND, failure=BROKEN)
    assert lease(store, 1) == []
    assert lease(store, 2) == [number]
    store.limbo.give_back("one", [number], failure=BROKEN)
    assert lease(store, 999) == []
    (kept,) = store.limbo.page(LimboSelection(state=LimboState.FAILED))
    assert (kept.tries, kept.exception_class, kept.exception_message) == (2, "shop.Broken", "no")


def test_one_a_selection_or_all_are_revived_with_all_their_tries_p17(store: Store) -> None:
    """P17: Patch Bay can only revive all."""
    first, second, third = put(store, 0, 0, 0)
    (other,) = put(store, 0, destination="queue://bills")
    waiting = put(store, 5)
    for number in lease(store, 0):
        store.limbo.give_back("one", [number], failure=BROKEN)
    now = NOON + SECOND
    assert store.limbo.revive(LimboSelection(numbers=frozenset({first, 99})), now) == 1
    assert store.limbo.revive(LimboSelection(destination="queue://bills"), now) == 1
    assert lease(store, 1) == [first, other]
    assert store.limbo.revive(EVERYTHING, now) == 2
    assert lease(store, 1) == [second, third]
    assert {each.tries for each in store.limbo.page()} == {0}
    assert lease(store, 5) == waiting


def test_release_lets_waiting_messages_go_and_touches_no_lease(store: Store) -> None:
    leased, late = put(store, 0, 500)
    lease(store, 1)
    assert store.limbo.release(EVERYTHING, NOON + SECOND) == 1
    assert lease(store, 1, "two") == [late]
    assert store.limbo.sent("one", [leased]) == 1


def test_purge_leaves_what_is_being_sent(store: Store) -> None:
    sending, other = put(store, 0, 1)
    lease(store, 0)
    assert store.limbo.purge(EVERYTHING, NOON) == 1
    assert [each.number for each in store.limbo.page()] == [sending]
    assert store.limbo.contents([other]) == {}
    assert store.limbo.purge(LimboSelection(activation="other"), NOON + 99 * SECOND) == 0
    assert store.limbo.purge(EVERYTHING, NOON + 99 * SECOND) == 1


def test_pages_are_in_the_order_of_numbers(store: Store) -> None:
    numbers = put(store, *range(1_200, 0, -1))
    page = store.limbo.page(limit=1_000)
    assert [each.number for each in page] == numbers[:1_000]
    assert [each.number for each in store.limbo.page(after=page[-1].number, limit=1_000)] == numbers[1_000:]
    selection = LimboSelection(state=LimboState.WAITING, jms_conn_id="jms_default")
    assert len(store.limbo.page(selection, limit=2_000)) == 1_200
    assert lease(store, 2_000, limit=1_200) == numbers[::-1]
    assert store.limbo.sent("one", numbers) == 1_200


class _Key(Fernet):
    is_encrypted = True


def test_messages_are_encrypted_where_there_is_a_key(url: str, tmp_path: Path) -> None:
    del tmp_path
    opened = open_or_make(url, _Key(Fernet.generate_key()))
    (number,) = opened.limbo.put([replace(ORDER, message=JmsMessage.text("card 4711"))], NOON)
    assert opened.limbo.contents([number]) == {number: JmsMessage.text("card 4711")}
    engine = create_engine(opened.database._url)
    with engine.connect() as connection:
        (raw,) = connection.execute(text("SELECT content FROM jms_limbo_content")).scalars()
    engine.dispose()
    assert b"4711" not in bytes(raw)
    opened.close()
    for cipher in (None, _Key(Fernet.generate_key())):
        other = open_store(url, cipher=cipher)
        found = other.limbo.contents([number])[number]
        assert isinstance(found, ConfigurationError)
        assert "fernet_key" in str(found)
        other.close()


def open_or_make(url: str, cipher: _Key) -> SqlStore:
    from tests.internals.store import Database  # noqa: PLC0415

    database = Database(url)
    database.upgrade()
    database.close()
    return open_store(url, cipher=cipher)


def test_a_message_can_be_put_there_as_failed_and_says_how_often_it_is_tried_p16(store: Store) -> None:
    """P16: limboDeliveryRetry is said for each message."""
    (number,) = put(store, 0, failure=BROKEN, most_tries=2)
    assert lease(store, 9) == []
    (kept,) = store.limbo.page()
    assert (kept.state, kept.tries, kept.most_tries) == (LimboState.FAILED, 0, 2)
    assert (kept.exception_class, kept.exception_message) == ("shop.Broken", "no")
    assert store.limbo.revive(EVERYTHING, NOON + 9 * SECOND) == 1
    assert lease(store, 9) == [number]


# -- entries that are sent once --------------------------------------------------------------------------


def once(store: Store, *, again: bool, due: int = 0) -> list[int]:
    return put(store, due, activation="a", key="k", once=True, again=again)


def test_an_entry_that_waits_makes_room_for_itself(store: Store) -> None:
    once(store, again=False)
    (second,) = once(store, again=True)
    assert [each.number for each in store.limbo.page()] == [second]


@pytest.mark.parametrize("noted", [True, False])
def test_an_entry_that_was_sent_or_is_being_sent_isnt_put_again(store: Store, *, noted: bool) -> None:
    (first,) = once(store, again=False)
    assert lease(store, 0) == [first]
    if noted:
        store.limbo.sent("one", [first])
    assert once(store, again=True) == []
    assert len(store.limbo.page()) == (not noted)
    later = replace(ORDER, activation="a", key="k", once=True, again=True)
    assert store.limbo.put([later], NOON + 99 * SECOND) == [], "its lease has run out: it may have been sent"


def test_what_is_settled_or_purged_may_come_again(store: Store) -> None:
    (first,) = once(store, again=False)
    lease(store, 0)
    store.limbo.sent("one", [first])
    store.limbo.settled("a", ["k"])
    (second,) = once(store, again=True)
    assert store.limbo.purge(LimboSelection(numbers=frozenset({second})), NOON) == 1
    (third,) = once(store, again=True)
    assert [each.number for each in store.limbo.page()] == [third]


def test_another_message_with_the_same_key_isnt_taken_for_it(store: Store) -> None:
    """It was not delivered before: its producer sent it twice."""
    (first,) = once(store, again=False)
    lease(store, 0)
    store.limbo.sent("one", [first])
    assert len(once(store, again=False)) == 1


def test_keys_are_remembered_for_the_activation_alone_and_not_for_ever(store: Store) -> None:
    (first,) = once(store, again=False)
    lease(store, 0)
    store.limbo.sent("one", [first])
    assert len(put(store, 0, activation="b", key="k", once=True, again=True)) == 1
    if isinstance(store, SqlStore):  # the twin is gone before
        store.handled.sweep(NOON + timedelta(days=8))
        assert len(once(store, again=True)) == 1


# -- how much is read --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "look",
    [
        lambda limbo: limbo.page(),
        lambda limbo: limbo.page(LimboSelection(state=LimboState.WAITING)),
        lambda limbo: limbo.page(LimboSelection(state=LimboState.WAITING, destination="queue://orders")),
        lambda limbo: limbo.page(LimboSelection(activation="a")),
        lambda limbo: limbo.page(LimboSelection(activation="a", state=LimboState.FAILED)),
        lambda limbo: limbo.lease(NOON, owner="one", until=NOON, limit=10),
        lambda limbo: limbo.take_over(NOON, until=NOON),
    ],
)
def test_sqlite_sorts_nothing_to_find_a_page_or_what_is_due(tmp_path: Path, look: Any) -> None:
    """An index has the messages in order; otherwise a page would cost as much as all that is parked."""
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    asked: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        asked.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        look(store.limbo)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as database:
        queries = [each for each in asked if each[0].startswith("SELECT")]
        plans = [
            database.execute(f"EXPLAIN QUERY PLAN {query}", given).fetchall() for query, given in queries
        ]
    assert plans
    assert "ORDER BY" not in str(plans)
