"""Claims on real brokers: what is wanted goes, what is refused stays, what can't be decoded is dead."""

from __future__ import annotations

import functools
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from airflow_provider_jmsjca import Destination, MoveTarget, Subscription, connect, manifest_messages
from tests.broker.listening import bodies, drained, send
from tests.broker.test_listener_undecodable import sent
from tests.internals.collecting import Choice, ClaimResult, ClaimSpec, claim
from tests.internals.engine import browse_or_receive
from tests.internals.spool import SpoolBatch
from tests.servers.broker import Broker

__all__ = ["sent"]
QUEUES_FIRST = timedelta(seconds=3)


def claimed(broker: Broker, queue: str, spool: Path, wanted: str = "", most: int = 50) -> ClaimResult:
    source = Destination.queue(queue)
    spec = ClaimSpec(
        subscription=Subscription(destination=source),
        max_messages=most,
        first_within=QUEUES_FIRST,
        choose=lambda message: Choice.CLAIM if wanted in str(message.body) else Choice.LEAVE,
        filters_messages=True,
        dead_letter=(MoveTarget.of(Destination.queue(f"{queue}.dead")),),
    )
    open_batch = functools.partial(SpoolBatch, spool, queue, source=str(source), activation="a")
    with closing(connect(broker.settings())) as connection:
        return claim(connection, open_batch, spec)


def test_what_is_wanted_goes_and_what_is_refused_stays_in_its_order(
    broker: Broker, queue_name: str, tmp_path: Path
) -> None:
    everything = [f"{'wanted' if number % 20 == 19 else 'other'} {number}" for number in range(60)]
    send(broker.settings(), queue_name, *everything)
    result = claimed(broker, queue_name, tmp_path, "wanted", most=2)
    assert result.manifest is not None
    assert [stored.message.body for stored in manifest_messages(result.manifest)] == [
        "wanted 19",
        "wanted 39",
    ]
    with closing(connect(broker.settings())) as connection:
        seen = browse_or_receive(connection, Destination.queue(queue_name), None, 5, QUEUES_FIRST)
        assert [message.body for message in seen] == [f"other {number}" for number in range(5)]
    rest = [each for each in everything if each not in {"wanted 19", "wanted 39"}]
    assert bodies(broker.settings(), queue_name) == rest


def test_what_cannot_be_decoded_is_a_dead_letter_and_the_others_are_claimed(
    broker: Broker, queue_name: str, sent: int, tmp_path: Path
) -> None:
    result = claimed(broker, queue_name, tmp_path)
    assert result.manifest is not None
    assert (result.manifest.rows, result.dead_letters, result.left) == (sent + 1, sent, 0)
    assert drained(broker.settings(), queue_name) == []
    assert len(drained(broker.settings(), f"{queue_name}.dead")) == sent
