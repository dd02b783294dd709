"""One finding for one cause: which symptoms follow from which cause, and which only look like it."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_jmsjca.operating.findings import (
    Cause,
    Effect,
    Evidence,
    FailedLogin,
    Finding,
    FindingKind,
    FullDisk,
    SilentTriggerer,
    by_cause,
    by_kind,
)

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
REFUSED = "stomp://mq:61613: the broker refuses the credentials: user nina is refused"
LOGIN = FailedLogin(conn_id="jms_a", broker="stomp://mq:61613", error=REFUSED, by_connection=False)
TRIGGERER = SilentTriggerer(heartbeat=NOON)
DISK = FullDisk(folder="/data/spool")
FULL = f"/data/spool/refs/1: can't be written: {os.strerror(errno.ENOSPC)} (a file)"


def finding(symptom: str, evidence: Evidence | None = None, names: Cause | None = None) -> Finding:
    return Finding(symptom=symptom, cause="c", fix="f", evidence=evidence, names=names)


def down(error: str, broker: str = "mq:61613", conn_id: str = "") -> Evidence:
    return Evidence(effect=Effect.DISCONNECTED, error=error, broker=broker, conn_id=conn_id)


def silent(at: datetime, *, needs_triggerer: bool = True) -> Evidence:
    return Evidence(effect=Effect.LOST, needs_triggerer=needs_triggerer, silent_at=at)


@pytest.mark.parametrize(
    ("cause", "evidence", "follows"),
    [
        (LOGIN, down(REFUSED), True),
        (LOGIN, down(REFUSED, broker="", conn_id="jms_a"), True),
        # The same broker refuses another user, or something else.
        (LOGIN, down(REFUSED.replace("nina", "otto")), False),
        (LOGIN, down("the broker refused: no permission for queue orders"), False),
        (LOGIN, down("KeyError: 'article'"), False),
        (LOGIN, down(""), False),
        # The same text, from another broker or over another connection.
        (LOGIN, down(REFUSED, broker="other:61613"), False),
        (LOGIN, down(REFUSED, broker=""), False),
        (LOGIN, down(REFUSED, conn_id="jms_b"), False),
        (TRIGGERER, silent(NOON), True),
        (TRIGGERER, silent(NOON + HOUR), True),
        (TRIGGERER, Evidence(effect=Effect.DEFERRED, needs_triggerer=True), True),
        # Lost while a triggerer was alive, which should have started it again.
        (TRIGGERER, silent(NOON - HOUR), False),
        # A listener in a worker.
        (TRIGGERER, silent(NOON, needs_triggerer=False), False),
        (SilentTriggerer(heartbeat=None), silent(NOON), False),
        (DISK, down(FULL), True),
        (DISK, down(f"/data/spool: can't be written: {os.strerror(errno.ENOSPC)}"), True),
        # Another disk, or another reason.
        (DISK, down(f"/data/spool2/refs/1: can't be written: {os.strerror(errno.ENOSPC)}"), False),
        (DISK, down(f"/more/data/spool/1: can't be written: {os.strerror(errno.ENOSPC)}"), False),
        (DISK, down("/data/spool/refs/1: can't be written: Permission denied"), False),
    ],
)
def test_a_symptom_follows_from_a_cause_only_if_recorded_facts_prove_it(
    cause: Cause, evidence: Evidence, follows: bool
) -> None:
    other = finding("b", evidence)
    cause_first, symptom_first = (
        by_cause(each) for each in ([finding("a", names=cause), other], [other, finding("a", names=cause)])
    )
    assert [(each.symptom, len(each.consequences)) for each in cause_first] == (
        [("a", 1)] if follows else [("a", 0), ("b", 0)]
    )
    assert by_kind(cause_first) == by_kind(symptom_first)  # causes come first in any case
    if follows:
        assert cause_first[0].consequences == (other,)


@pytest.mark.parametrize(
    ("since", "error_since", "shown"),
    [
        (NOON, NOON, ", at least since 2026-05-04T12:00:00+00:00"),
        # It was down for another reason before; it was down for this reason in an earlier outage.
        (NOON - HOUR, NOON, ", at least since 2026-05-04T12:00:00+00:00"),
        (NOON, NOON - HOUR, ", at least since 2026-05-04T12:00:00+00:00"),
        (NOON, None, ""),
        (None, NOON, ""),
    ],
)
@pytest.mark.parametrize(("cause", "error"), [(LOGIN, REFUSED), (DISK, FULL)])
def test_a_cause_has_lasted_at_least_since_the_first_symptom_with_its_error(
    cause: Cause, error: str, since: datetime | None, error_since: datetime | None, shown: str
) -> None:
    def symptom(later: timedelta) -> Finding:
        times = [None if each is None else each + later for each in (since, error_since)]
        evidence = replace(down(error), since=times[0], error_since=times[1])
        return finding(f"b {later}", evidence)

    [one] = by_cause([finding("a", names=cause), symptom(HOUR), symptom(timedelta(0)), symptom(2 * HOUR)])
    assert one.symptom == f"a{shown}"
    assert by_cause([finding("a", names=cause)])[0].symptom == "a"


def test_an_error_that_does_not_name_the_user_proves_nothing_about_other_connections() -> None:
    cause = FailedLogin(conn_id="a", broker="stomp://mq:61613", error=REFUSED, by_connection=True)
    assert not cause.explains(down(REFUSED))
    assert cause.explains(down(REFUSED, conn_id="a"))


def test_a_second_connection_to_a_broker_that_is_down_follows_with_all_that_fails_there() -> None:
    text = "no broker could be reached: stomp://mq:61613: Connection refused"

    def unreachable(conn_id: str) -> Finding:
        cause = FailedLogin(conn_id=conn_id, broker="stomp://mq:61613", error=text, by_connection=False)
        return finding(conn_id, Evidence(effect=Effect.CONNECTIONS, error=text, broker="mq:61613"), cause)

    [one] = by_cause([finding("listener", down(text)), unreachable("a"), unreachable("b"), unreachable("a")])
    assert (one.symptom, [each.symptom for each in one.consequences]) == ("a", ["listener", "b"])
    assert one.summary == "activations that are not connected: 1; other connections that cannot log in: 1"


def test_a_note_with_a_consequence_that_is_a_problem_is_a_problem() -> None:
    note = Finding(kind=FindingKind.NOTE, symptom="a", cause="c", fix="f", names=TRIGGERER)
    lost = Evidence(effect=Effect.LOST, count=3, since=NOON, needs_triggerer=True, silent_at=NOON)
    [one] = by_kind(by_cause([note, finding("b", lost)]))
    assert (one.kind, one.summary) == (
        FindingKind.PROBLEM,
        "lost activations: 3, since 2026-05-04T12:00:00+00:00",
    )
    assert by_kind(by_cause([note])) == []
