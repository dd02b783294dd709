"""Messages on their way through the in-progress queue."""

from __future__ import annotations

from airflow_provider_jmsjca.core.delivery.staging import Staging


def test_a_message_is_on_its_way_until_it_comes() -> None:
    """I9."""
    staging = Staging()
    staging.begin("a")
    assert len(staging) == 0, "it is still in its unit of work"
    staging.end("a", done=True)
    assert len(staging) == 1
    staging.came("a")
    assert len(staging) == 0


def test_it_may_come_before_the_confirmation() -> None:
    """I9: otherwise it would count as on its way for ever, and nothing more would be taken."""
    staging = Staging()
    staging.begin("a")
    staging.came("a")
    staging.end("a", done=True)
    assert len(staging) == 0


def test_what_comes_after_an_outage_is_not_counted_twice() -> None:
    """I9, J13."""
    staging = Staging()
    staging.begin("a")
    staging.end("a", done=True)
    staging.begin("b")
    staging.clear()
    staging.end("b", done=True)
    staging.came("a")
    staging.came("b")
    staging.begin("c")
    staging.end("c", done=True)
    assert len(staging) == 1


def test_a_failure_and_a_message_without_id_leave_nothing() -> None:
    staging = Staging()
    staging.begin("a")
    staging.end("a", done=False)
    staging.begin(None)
    staging.end(None, done=True)
    staging.came(None)
    assert len(staging) == 0
