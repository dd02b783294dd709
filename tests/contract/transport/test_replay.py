"""Dead letters go back: every letter once, on every broker."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    Activation,
    ActivationSpec,
    ConfigurationError,
    Connection,
    Destination,
    JmsMessage,
    Outgoing,
    Replay,
    replay_dead_letters,
)
from tests.contract.transport.lab import Lab
from tests.contract.transport.traffic import Connect, drain
from tests.internals.operating import REPLAY_COUNT, REPLAY_OF, grouped

GOOD, BAD = 130, 3
MANY = 700  # more than a broker delivers to a consumer that acknowledges nothing


def dead_letters(lab: Lab, connection: Connection, queue: Destination, count: int) -> Destination:
    """Let a listener move messages to the dead-letter queue; return that queue."""
    connection.send(
        Outgoing(
            destination=queue,
            message=JmsMessage.text(
                f"m{n}", {"n": str(n), "JMSXGroupID": f"g{n % 3}"}, correlation_id=f"c{n}"
            ),
        )
        for n in range(count)
    )

    def fail(delivery: object) -> None:
        raise ValueError(f"order {delivery} is wrong")

    listener = Activation(
        ActivationSpec(destination=str(queue), redelivery_handling="1:move(queue:$.dlq)"),
        fail,
        connection=lab.settings(),
    )
    listener.run(run_for=60, idle_for=1)
    return Destination.queue(f"{queue.name}.dlq")


def test_every_letter_goes_back_once(connect: Connect, lab: Lab, queue: Destination) -> None:
    source = dead_letters(lab, connect(), queue, GOOD)
    asked = Replay(run="r1", origins=frozenset({queue}))
    dry = replay_dead_letters(connect(), source, Replay(run="r0", origins=frozenset({queue}), dry_run=True))
    assert dry.sent == Counter({str(queue): GOOD})
    result = replay_dead_letters(connect(), source, asked)
    assert result.sent == Counter({str(queue): GOOD})
    assert not result.left
    found = drain(connect(), queue)
    assert Counter(each.body for each in found) == Counter(f"m{n}" for n in range(GOOD))
    one = next(each for each in found if each.body == "m7")
    assert one.correlation_id == "c7"
    assert one.properties["n"] == "7"
    assert not [name for name in one.properties if name.startswith(("JMS_Sun", "JMSJCATimestamp", "_JMSJCA"))]
    assert str(one.properties[REPLAY_COUNT]) == "1"
    assert one.properties[REPLAY_OF]
    assert drain(connect(), source) == []


def test_letters_that_fail_again_stay(connect: Connect, lab: Lab, queue: Destination) -> None:
    """A letter that comes back during a replay is not sent again, so a replay ends."""
    source = dead_letters(lab, connect(), queue, BAD)
    asked = Replay(run="r1", origins=frozenset({queue}))
    assert replay_dead_letters(connect(), source, asked).sent.total() == BAD
    dead_letters(lab, connect(), queue, 0)
    again = replay_dead_letters(connect(), source, asked)
    assert again.sent.total() == 0
    assert again.left == Counter({"failed again after it was sent back": BAD})
    assert replay_dead_letters(connect(), source, Replay(run="r2", target=queue)).sent.total() == BAD
    assert {str(each.properties[REPLAY_COUNT]) for each in drain(connect(), queue)} == {"2"}


def put(connection: Connection, source: Destination, origin: str, count: int) -> None:
    """Put dead letters of a queue on `source`."""
    properties = {
        "JMS_Sun_JMSJCA_OriginalDestinationName": origin,
        "JMS_Sun_JMSJCA_OriginalDestinationType": "javax.jms.Queue",
    }
    connection.send(
        Outgoing(destination=source, message=JmsMessage.text(str(n), properties)) for n in range(count)
    )


def test_a_dry_run_counts_more_letters_than_a_broker_delivers_at_once(
    connect: Connect, queue: Destination
) -> None:
    source = Destination.queue(f"{queue.name}.dlq")
    put(connect(), source, queue.name, MANY)
    dry = replay_dead_letters(connect(), source, Replay(run="r", origins=frozenset({queue}), dry_run=True))
    assert (dry.sent, dry.complete) == (Counter({str(queue): MANY}), True)
    one = replay_dead_letters(
        connect(), source, Replay(run="r", origins=frozenset({queue}), dry_run=True, most=1)
    )
    assert one.sent == Counter({str(queue): 1})


def test_letters_behind_many_that_stay_are_not_passed_over_in_silence(
    connect: Connect, queue: Destination
) -> None:
    source = Destination.queue(f"{queue.name}.dlq")
    put(connect(), source, "payments", MANY)
    put(connect(), source, queue.name, BAD)
    result = replay_dead_letters(connect(), source, Replay(run="r", origins=frozenset({queue})))
    assert result.left.total() >= 200
    assert not result.complete
    dry = replay_dead_letters(connect(), source, Replay(run="r", origins=frozenset({queue}), dry_run=True))
    assert (dry.sent, dry.complete) == (Counter(), False)
    assert 200 <= dry.left.total() < MANY
    assert replay_dead_letters(connect(), source, Replay(run="r", target=queue)).complete


@pytest.mark.parametrize(
    ("bounds", "fault"),
    [
        ({"per_second": 0}, "per_second is 0; expected a number above 0"),
        ({"per_second": math.nan}, "per_second is nan"),
        ({"per_second": math.inf}, "per_second is inf"),
        ({"per_second": "5"}, "per_second is '5'"),
        ({"most": 0}, "most is 0; expected a whole number of at least 1"),
        ({"most": 1.5}, "most is 1.5"),
    ],
)
def test_bounds_that_are_no_numbers_are_refused(bounds: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(fault)):
        Replay(run="r", target=Destination.queue("orders"), **bounds)


@pytest.mark.parametrize("lab", ["memory"], indirect=True)
def test_groups(lab: Lab, connect: Connect, queue: Destination) -> None:
    (group,) = grouped(drain(connect(), dead_letters(lab, connect(), queue, BAD)))
    assert (group.count, group.destination) == (BAD, queue)
    assert group.reason.startswith("ValueError: order")
    assert group.first is not None
    assert group.last is not None
    assert group.first <= group.last


def test_one_letter_by_its_id(connect: Connect, lab: Lab, queue: Destination) -> None:
    source, other = Destination.queue(f"{queue.name}.dlq"), Destination.queue(f"{queue.name}.other")
    put(connect(), source, queue.name, 60)
    administration = connect(management_url=lab.management_url).administration()
    wanted = [str(each.message_id) for each in administration.browse(source.name) if each.body in {"7", "55"}]
    chosen = Replay(run="r", target=other, ids=(*wanted, "ID:gone"))
    dry = replay_dead_letters(connect(), source, replace(chosen, dry_run=True))
    assert (dry.sent, dry.missing) == (Counter({str(other): 2}), ("ID:gone",))
    result = replay_dead_letters(connect(), source, chosen)
    assert (result.sent, result.missing) == (Counter({str(other): 2}), ("ID:gone",))
    assert result.complete
    assert sorted(str(each.body) for each in drain(connect(), other)) == ["55", "7"]
    left = replay_dead_letters(connect(), source, Replay(run="r", origins=frozenset({other}), dry_run=True))
    assert left.left == Counter({f"comes from {queue}": 58})
    administration.close()


@pytest.mark.parametrize("lab", ["memory", "artemis"], indirect=True)
def test_only_letters_that_were_chosen(connect: Connect, queue: Destination) -> None:
    source, other = Destination.queue(f"{queue.name}.dlq"), Destination.queue(f"{queue.name}.other")
    origin = {
        "JMS_Sun_JMSJCA_OriginalDestinationName": queue.name,
        "JMS_Sun_JMSJCA_OriginalDestinationType": "javax.jms.Queue",
    }
    forged = {**origin, "JMS_Sun_JMSJCA_OriginalDestinationName": "payments"}
    connect().send(
        Outgoing(destination=source, message=JmsMessage.text(body, properties))
        for body, properties in (("a", origin), ("b", forged), ("c", {}), ("d", origin))
    )
    result = replay_dead_letters(connect(), source, Replay(run="r", origins=frozenset({queue}), most=1))
    assert result.sent == Counter({str(queue): 1})
    result = replay_dead_letters(connect(), source, Replay(run="r", origins=frozenset({queue})))
    assert result.left == Counter(
        {"comes from queue://payments": 1, "its original destination is not known": 1}
    )
    old = replay_dead_letters(connect(), source, Replay(run="r", target=other, max_age=timedelta(0)))
    assert old.left == Counter({"older than the maximum age": 2})
    assert replay_dead_letters(connect(), source, Replay(run="r", target=other)).sent.total() == 2
    assert sorted(str(each.body) for each in drain(connect(), queue)) == ["a", "d"]
    assert sorted(str(each.body) for each in drain(connect(), other)) == ["b", "c"]


@pytest.mark.parametrize("lab", ["memory"], indirect=True)
def test_a_replay_must_have_another_target(connect: Connect, queue: Destination) -> None:
    with pytest.raises(ConfigurationError, match="expected another target"):
        replay_dead_letters(connect(), queue, Replay(run="r", target=queue))
    with pytest.raises(ConfigurationError, match="expected another target"):
        replay_dead_letters(connect(), queue, Replay(run="r", origins=frozenset({queue})))
    with pytest.raises(ConfigurationError, match="either one target"):
        Replay(run="r")
