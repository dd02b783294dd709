from __future__ import annotations

import threading

import pytest

from airflow_provider_jmsjca.errors import ConnectionLostError, PermanentBrokerError, ReplyTimeoutError
from airflow_provider_jmsjca.transports.stomp.link.replies import Replies


def test_waits_for_all_of_a_group() -> None:
    replies = Replies()
    group = replies.receipts()
    first, second = group.ask(), group.ask()
    assert first != second
    replies.arrived(second)
    with pytest.raises(ReplyTimeoutError, match=r"no receipt for 0\.01 s"):
        group.wait(0.01)
    replies.arrived(first)
    group.wait(0.01)


def test_wakes_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies()
    group = replies.receipts()
    identifier = group.ask()
    waits = threading.Event()
    wait = group._condition.wait

    def note(timeout: float | None) -> bool:
        waits.set()
        return wait(timeout)

    monkeypatch.setattr(group._condition, "wait", note)
    over: list[str] = []
    waiter = threading.Thread(target=lambda: over.append(str(group.wait(30))))
    waiter.start()
    assert waits.wait(5)
    with group._condition:  # it is inside, and has let go of the lock
        pass
    replies.arrived(identifier)
    waiter.join(5)
    assert over == ["None"]


def test_an_unknown_receipt_is_harmless() -> None:
    replies = Replies()
    group = replies.receipts()
    asked = group.ask()
    replies.arrived("99")
    assert asked in group.open


def test_no_receipt_tells_of_another() -> None:
    """Some brokers tell them to whoever gets the message for which they were asked."""
    replies = Replies()
    asked = replies.receipts().ask_for(1000)
    assert {len(each) for each in asked} == {12}
    assert len({each[:6] for each in asked}) > 990
    assert len({each[6:] for each in asked}) > 990


def test_only_what_was_asked_is_waited_for() -> None:
    replies = Replies()
    asked = replies.receipts().ask()
    assert replies.is_asked(asked.encode())
    assert not replies.is_asked(b"\xff" + asked.encode())
    replies.arrived(asked)
    assert not replies.is_asked(asked.encode())


def test_short_ids_are_never_given_twice() -> None:
    replies = Replies()
    replies.length = 4
    group = replies.receipts()
    asked = [each for _ in range(20) for each in group.ask_for(2000)]  # some 50 are drawn twice
    assert len(set(asked)) == 40_000
    assert {len(each) for each in asked} == {4}


def test_an_error_with_a_receipt_id_hits_its_group_only() -> None:
    replies = Replies()
    one, other = replies.receipts(), replies.receipts()
    identifier, unharmed = one.ask(), other.ask()
    assert replies.refused(identifier, PermanentBrokerError("no"))
    with pytest.raises(PermanentBrokerError, match="no"):
        one.wait(1)
    assert one.refused == identifier
    replies.arrived(unharmed)
    other.wait(1)


def test_an_error_without_one_hits_the_groups_that_take_the_blame() -> None:
    replies = Replies()
    subscribe, send = replies.receipts(blame=True), replies.receipts()
    subscribe.ask()
    identifier = send.ask()
    assert replies.refused(None, PermanentBrokerError("bad selector"))
    with pytest.raises(PermanentBrokerError, match="bad selector"):
        subscribe.wait(1)
    replies.arrived(identifier)
    send.wait(1)


def test_an_error_nobody_waits_for_is_reported_as_such() -> None:
    replies = Replies()
    replies.receipts().ask()
    assert not replies.refused(None, PermanentBrokerError("?"))


def test_a_lost_connection_ends_every_wait_and_every_new_one() -> None:
    replies = Replies()
    group = replies.receipts()
    group.ask()
    replies.lost(ConnectionLostError("cut"))
    with pytest.raises(ConnectionLostError, match="cut"):
        group.wait(1)
    with pytest.raises(ConnectionLostError, match="cut"):
        replies.receipts().ask()


def test_each_thread_gets_an_exception_of_its_own() -> None:
    replies = Replies()
    group = replies.receipts()
    group.ask()
    replies.lost(ConnectionLostError("cut"))
    raised = []
    for _ in range(2):
        with pytest.raises(ConnectionLostError) as caught:
            group.wait(1)
        raised.append(caught.value)
    assert raised[0] is not raised[1]
