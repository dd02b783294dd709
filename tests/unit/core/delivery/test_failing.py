"""How many messages fail while nothing else happens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_jmsjca.core.delivery import decisions as d
from airflow_provider_jmsjca.core.delivery import events as e
from tests.unit.core.delivery.harness import FAILURE, SETTINGS, Run

MANY = replace(SETTINGS, concurrency=15)


def failing(run: Run, *names: str) -> list[d.Deliver]:
    """Let messages fail that were delivered before; return their next deliveries."""
    begun = [run.only(d.Deliver, run.message(name, seen=1)) for name in names]
    return [fail(run, each) for each in begun]


def how_many(run: Run) -> int | None:
    return run.machine.failing


def fail(run: Run, delivery: d.Deliver) -> d.Deliver:
    again = run.send(e.HandlerRaised(call=delivery.call, failure=FAILURE))[-1]
    assert isinstance(again, d.Deliver)
    return again


def test_each_message_counts_once_however_often_it_fails() -> None:
    run = Run(settings=MANY)
    assert run.machine.failing == 0
    for delivery in failing(run, "ID:a", "ID:b"):
        fail(run, fail(run, delivery))
    assert run.machine.failing == 2


def test_one_whose_handler_has_not_failed_yet_may_still_succeed() -> None:
    run = Run(settings=MANY)
    failing(run, "ID:a")
    other = run.only(d.Deliver, run.message("ID:b", seen=1))
    assert run.machine.failing is None
    fail(run, other)
    assert run.machine.failing == 2


def test_a_first_delivery_is_something_else() -> None:
    run = Run(settings=MANY)
    failing(run, "ID:a", "ID:b")
    fail(run, run.only(d.Deliver, run.message("ID:c")))
    assert run.machine.failing is None, "a and b are being handled, and haven't failed since"


@pytest.mark.parametrize("seen", [0, 1])
def test_after_a_commit_all_begins_anew(seen: int) -> None:
    run = Run(settings=SETTINGS)
    first = run.only(d.Deliver, run.message("ID:a", seen=seen))
    again = fail(run, first)
    assert run.machine.failing == 1
    run.send(e.HandlerReturned(call=again.call))
    run.send(e.UnitCommitted(unit=again.unit))
    assert run.machine.failing == 0


def test_the_short_way_is_something_else_too() -> None:
    run = Run(handling="1:6000", settings=replace(MANY, non_blocking_redelivery=True))
    first = run.only(d.Deliver, run.message("ID:a"))
    park = run.send(e.HandlerRaised(call=first.call, failure=FAILURE))[-1]
    assert isinstance(park, d.Park)
    run.send(e.UnitCommitted(unit=park.unit))
    assert how_many(run) == 1, "it is parked, and that is nothing else"
    direct = run.machine.begin_directly(99, "ID:b", None, run.now)
    assert direct is not None
    assert how_many(run) is None
    assert run.machine.returned_directly(direct)
    assert run.machine.committed_directly(direct)
    assert how_many(run) == 0


def test_a_move_that_is_refused_has_failed() -> None:
    run = Run(handling="1:move(queue:dlq)", settings=replace(SETTINGS, move_retries=5))
    move = run.only(d.MoveMessage, run.message("ID:a", seen=1))
    run.send(e.UnitFailed(unit=move.unit, failure=FAILURE))
    assert run.machine.failing == 1


def test_no_more_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("counts", "units"):
        monkeypatch.setattr(f"airflow_provider_jmsjca.core.delivery.{module}.FAILING_LIMIT", 2)
    run = Run(settings=MANY)
    failing(run, "ID:a", "ID:b", "ID:c")
    assert run.machine.failing == 2
