"""Which messages come again: by identity, by id, over which connection, and how many of them."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca.core.message.delivery_memory import DeliveryMemory, Verdict
from airflow_provider_jmsjca.core.message.message import Identity

TAKE, WAIT, SETTLE = Verdict.TAKE, Verdict.WAIT, Verdict.SETTLE
DUPLICATE, STAY = Verdict.DUPLICATE, Verdict.STAY


def identity(name: str, timestamp: int | None = 1000) -> Identity:
    return Identity(name, None, timestamp, 7)


A, B, C = identity("ID:a"), identity("ID:b"), identity("ID:c")
UNTIMED = identity("ID:a", None)


class Run:
    """A memory, its connections, and the messages that it has checked again."""

    def __init__(self, *, stable: bool = True, remembered: int = 9) -> None:
        self.memory: DeliveryMemory[str] = DeliveryMemory(remembered)
        self.memory.stable = stable
        self.again: list[str] = []
        self.count = 0
        self.connect()

    def connect(self, *, back: Identity | None = None, unacknowledged: Identity | None = None) -> None:
        self.count += 1
        self.buffer, self.link = f"buffer {self.count}", f"link {self.count}"
        self.memory.begin(
            self.buffer, self.link, self.again.extend, unsettled={back}, unacknowledged={unacknowledged}
        )

    def gets(
        self, key: Identity, message: str = "m", *, flag: bool = True, lane: str | None = None
    ) -> Verdict:
        published = key if flag else None
        return self.memory.classify(message, identity=key, published=published, redelivered=flag, lane=lane)


# -- settled messages ---------------------------------------------------------------------------------------


def test_a_settled_message_comes_again_over_a_later_connection_only() -> None:
    run = Run()
    run.memory.note(A)
    assert run.gets(A) is TAKE
    run.connect()
    assert run.gets(A, flag=False) is SETTLE
    assert run.gets(B) is TAKE


def test_another_buffer_of_the_same_connection_repeats_nothing() -> None:
    run = Run()
    run.memory.note(A)
    run.memory.begin("resumed", run.link, run.again.extend)
    assert run.gets(A) is TAKE


def test_a_settlement_over_an_earlier_connection_may_be_reported_late() -> None:
    run = Run()
    run.connect()
    run.memory.mark_settled_earlier(A)
    run.memory.note(B)
    assert (run.gets(A), run.gets(B)) == (SETTLE, TAKE)


def test_a_message_settled_twice_was_settled_before() -> None:
    run = Run()
    run.memory.note(A)
    run.connect()
    run.memory.note(A)
    assert run.gets(A) is SETTLE


@pytest.mark.parametrize(
    ("key", "flag", "verdict"), [(A, True, SETTLE), (A, False, TAKE), (UNTIMED, True, TAKE)]
)
def test_ids_of_producers_need_the_flag_and_a_sending_time(
    key: Identity, flag: bool, verdict: Verdict
) -> None:
    run = Run(stable=False)
    run.memory.note(key)
    run.connect()
    assert run.gets(key, flag=flag) is verdict


def test_the_id_of_a_message_published_elsewhere_needs_the_flag() -> None:
    run = Run()
    run.memory.note(A)
    run.connect()
    assert run.memory.classify("copy", identity=B) is TAKE
    assert run.memory.classify("copy", identity=B, published=A) is SETTLE


def test_an_unsettled_message_repeats_nothing() -> None:
    run = Run()
    run.memory.note(A)
    run.connect()
    assert run.memory.is_repetition(A, None, redelivered=False)
    run.connect(back=A)
    assert run.gets(A) is TAKE


def test_the_oldest_settled_message_is_forgotten_first() -> None:
    run = Run(remembered=2)
    for key in (A, B, A, C):
        run.memory.note(key)
    run.connect()
    assert [run.gets(key) for key in (A, B, C)] == [SETTLE, TAKE, SETTLE]


# -- deliveries of an event loop ----------------------------------------------------------------------------


def test_a_copy_waits_for_the_answer_of_an_earlier_delivery() -> None:
    run = Run()
    earlier = run.buffer
    run.memory.hand_out(A)
    run.connect()
    assert (run.gets(A, "a", lane="g"), run.gets(B, "b", lane="g")) == (WAIT, WAIT)
    assert run.gets(C, "c") is TAKE
    assert run.memory.has_unsettled
    run.memory.record_outcome(1, A, earlier, handled=True)
    assert run.again == ["a", "b"]
    assert (run.gets(A, "a", lane="g"), run.gets(B, "b", lane="g")) == (SETTLE, TAKE)
    assert not run.memory.is_handled(1), "numbers are of the present buffer"


def test_a_released_message_goes_before_its_group() -> None:
    run = Run()
    earlier = run.buffer
    run.memory.hand_out(A)
    run.memory.hand_out(B)
    run.connect()
    assert [run.gets(A, "a", lane="g"), run.gets(B, "b", lane="g")] == [WAIT, WAIT]
    run.memory.record_outcome(1, A, earlier, handled=False)
    assert run.again == ["a"]
    assert run.gets(A, "a", lane="g") is TAKE
    assert run.gets(C, "c", lane="g") is WAIT


def test_a_returned_delivery_keeps_its_outcome_until_it_is_settled() -> None:
    run = Run()
    run.memory.hand_out(A)
    run.memory.record_outcome(1, A, run.buffer, handled=True)
    assert run.memory.is_handled(1)
    run.memory.mark_settled([1])
    assert not run.memory.is_handled(1)


def test_an_unacknowledged_message_without_a_time_is_recognised_once() -> None:
    run = Run(stable=False)
    run.memory.hand_out(UNTIMED)
    run.memory.record_outcome(1, UNTIMED, run.buffer, handled=True)
    run.connect(unacknowledged=UNTIMED)
    assert run.gets(UNTIMED, flag=False) is TAKE
    assert [run.gets(UNTIMED), run.gets(UNTIMED)] == [SETTLE, TAKE]


def test_a_message_that_stays_stays() -> None:
    run = Run(stable=False)
    run.memory.mark_left_unsettled(A)
    assert (run.gets(A), run.gets(A, flag=False), run.memory.left_unsettled) == (STAY, TAKE, 1)


# -- duplicate elimination ----------------------------------------------------------------------------------


def duplicate(run: Run, message_id: str | None, message: str = "m", lane: str | None = None) -> Verdict:
    return run.memory.classify(message, message_id=message_id, lane=lane)


def test_the_oldest_ids_are_forgotten_first_and_no_id_is_no_duplicate() -> None:
    """I17."""
    run = Run(remembered=2)
    for message_id in ("ID:1", "ID:2", None, None, "ID:3"):
        assert duplicate(run, message_id) is TAKE
        run.memory.record_id_outcome(message_id, run.buffer, handled=True)
    assert [duplicate(run, each) for each in ("ID:1", "ID:2", "ID:3", None)] == [
        TAKE, DUPLICATE, DUPLICATE, TAKE,
    ]  # fmt: skip


def test_messages_of_an_older_buffer_wait_no_more() -> None:
    """Its consumers are closed, so the broker has them back."""
    run = Run()
    old = run.buffer
    assert (duplicate(run, "ID:1", "1"), duplicate(run, "ID:1", "2")) == (TAKE, WAIT)
    assert run.memory.waiting == ["2"]
    run.connect()
    assert duplicate(run, "ID:1", "3") is TAKE
    run.memory.record_id_outcome("ID:1", old, handled=False)
    assert duplicate(run, "ID:1", "4") is WAIT
    run.memory.record_id_outcome("ID:1", run.buffer, handled=False)
    assert run.again == ["4"]


def test_messages_wait_behind_one_that_waits_where_their_consumer_settles_in_order() -> None:
    run = Run()
    assert duplicate(run, "ID:1", "first", "consumer 1") is TAKE
    assert duplicate(run, "ID:1", "again", "consumer 2") is WAIT
    assert duplicate(run, "ID:2", "behind", "consumer 2") is WAIT
    assert duplicate(run, None, "nameless", "consumer 2") is WAIT
    assert duplicate(run, "ID:3", "other", "consumer 3") is TAKE
    assert duplicate(run, "ID:4", "elsewhere") is TAKE
    run.memory.record_id_outcome("ID:1", run.buffer, handled=True)
    assert run.again == ["again", "behind", "nameless"]
    assert duplicate(run, "ID:1", "again", "consumer 2") is DUPLICATE
    assert duplicate(run, "ID:2", "behind", "consumer 2") is TAKE


# -- sessions -----------------------------------------------------------------------------------------------


def test_a_message_handed_back_is_expected_once() -> None:
    run = Run(remembered=2)
    for key in ("a", "b", "c"):
        run.memory.expect(key)
    assert [run.memory.pop_expected(key) for key in ("a", "b", "c", "c")] == [False, True, True, False]
