"""Messages on their way through the in-progress queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_jmsjca.core.delivery import decisions as d
from airflow_provider_jmsjca.core.delivery import events as e
from airflow_provider_jmsjca.core.delivery.concurrency import ConcurrencyLimit
from airflow_provider_jmsjca.core.delivery.pending import InProgressTracking
from tests.unit.core.delivery.harness import FAILURE, SETTINGS, Run


def staging_run(concurrency: int, *, room: ConcurrencyLimit | None = None, **values: Any) -> Run:
    settings = replace(SETTINGS, concurrency=concurrency, in_progress=True, **values)
    return Run(settings=settings, room=(room or ConcurrencyLimit(concurrency)).join(lambda: None))


def put_in_progress(run: Run, message_id: str) -> None:
    stage = run.only(d.Stage, run.message(message_id))
    assert run.send(e.UnitCommitted(unit=stage.unit)) == []


def test_a_message_is_on_its_way_until_it_comes() -> None:
    """I9."""
    staging = InProgressTracking()
    staging.begin("a")
    assert len(staging) == 0, "it is still in its unit of work"
    staging.end("a", done=True)
    assert len(staging) == 1
    staging.came("a")
    assert len(staging) == 0


def test_it_may_come_before_the_confirmation() -> None:
    """I9: otherwise it would count as on its way for ever, and nothing more would be taken."""
    staging = InProgressTracking()
    staging.begin("a")
    staging.came("a")
    staging.end("a", done=True)
    assert len(staging) == 0


def test_what_comes_after_an_outage_is_not_counted_twice() -> None:
    """I9, J13."""
    staging = InProgressTracking()
    staging.begin("a")
    staging.end("a", done=True)
    staging.begin("b")
    staging.clear()
    staging.end("b", done=True)
    assert len(staging) == 0
    staging.came("a")
    staging.came("b")
    staging.begin("c")
    staging.end("c", done=True)
    assert len(staging) == 1


def test_a_failure_and_a_message_without_id_leave_nothing() -> None:
    staging = InProgressTracking()
    staging.begin("a")
    staging.end("a", done=False)
    staging.begin(None)
    staging.end(None, done=True)
    staging.came(None)
    assert len(staging) == 0


def test_no_more_is_put_in_progress_than_can_be_handled_at_once() -> None:
    """I9, I11: after a crash all of it would be in doubt."""
    run = staging_run(1)
    put_in_progress(run, "a")
    assert run.arrive("b") == []
    first = run.only(d.Deliver, run.message("a", in_progress=True))
    assert run.arrive("c") == []
    run.send(e.HandlerReturned(call=first.call))
    stage = run.only(d.Stage, e.UnitCommitted(unit=first.unit))
    assert stage.delivery == 2


def test_as_many_are_put_in_progress_as_the_batches_hold() -> None:
    run = staging_run(1, batch_size=2)
    put_in_progress(run, "a")
    put_in_progress(run, "b")
    assert run.arrive("c") == []


@pytest.mark.parametrize("arrival", [{"undecodable": FAILURE}, {"unsubscribed": True}])
def test_what_no_handler_gets_is_not_put_in_progress(arrival: dict[str, Any]) -> None:
    run = staging_run(1, limbo=True)
    assert run.only(d.MoveMessage, run.message(**arrival)).to_limbo


def test_what_has_come_from_there_is_taken_although_the_limit_is_reached() -> None:
    """W4: it is counted already."""
    run = staging_run(2, room=ConcurrencyLimit(2, limit=1))
    put_in_progress(run, "a")
    assert run.arrive("b") == []
    assert run.only(d.Deliver, run.message("a", in_progress=True)).delivery == 3


def test_what_has_come_from_there_and_waits_counts_for_the_limit() -> None:
    """W4."""
    room = ConcurrencyLimit(1, limit=2)
    run = staging_run(2, room=room)
    put_in_progress(run, "a")
    put_in_progress(run, "b")
    run.only(d.Deliver, run.message("a", in_progress=True))
    assert run.arrive("b", in_progress=True) == []
    assert not room.join(lambda: None).admit(unit=False)


def test_what_is_in_progress_goes_before_what_waits_for_its_turn() -> None:
    """I9."""
    run = staging_run(2)
    put_in_progress(run, "a")
    put_in_progress(run, "b")
    assert run.arrive("c") == []
    assert run.only(d.Deliver, run.message("a", in_progress=True)).delivery == 4
    assert run.only(d.Deliver, run.message("b", in_progress=True)).delivery == 5
