"""Equal messages under ids that their producer makes: which of them repeat sealed ones."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.spool.duplicates import DroppedMessage, DuplicateFilter
from airflow_provider_jmsjca.spool.known_ids import message_key
from airflow_provider_jmsjca.spool.manifest import Segment
from airflow_provider_jmsjca.spool.rows import Row
from airflow_provider_jmsjca.spool.spool import SpoolBatch
from tests.unit.spool.batches import ORDERS, OpenBatch

PLAIN = JmsMessage.text("paid", message_id="order-7", destination=ORDERS)
TIMED = replace(PLAIN, timestamp=1_700_000_000_000)
KEY = message_key("order-7", str(ORDERS))


def flagged(message: JmsMessage) -> Row:
    return Row(replace(message, redelivered=True), 7)


def sealed(batch: SpoolBatch, *messages: JmsMessage, settled: bool = False) -> Segment:
    segment = batch.seal([Row(message, 1) for message in messages])
    if settled:
        batch.note_settled(batch.folder / segment.file)
    return segment


def drop(repetitions: DuplicateFilter, message: JmsMessage, most: int = 9) -> list[DroppedMessage]:
    """Receive equal messages until one is to be stored; return what was dropped before that."""
    found = [repetitions.check_duplicate(KEY, flagged(message)) for _ in range(most)]
    dropped = [each for each in found if each is not None]
    assert found == [*dropped, *[None] * (most - len(dropped))]
    return dropped


def test_only_what_the_broker_flags_can_be_a_repetition(open_batch: OpenBatch) -> None:
    with open_batch() as batch:
        assert not DuplicateFilter(batch, stable=False).is_candidate(PLAIN)
        assert DuplicateFilter(batch, stable=False).is_candidate(replace(PLAIN, redelivered=True))
        assert DuplicateFilter(batch, stable=True).is_candidate(PLAIN)


def test_a_copy_whose_acknowledgement_was_confirmed_is_not_repeated(open_batch: OpenBatch) -> None:
    with open_batch("b1") as batch:
        sealed(batch, PLAIN, settled=True)
        assert drop(DuplicateFilter(batch, stable=False), PLAIN) == []
    with open_batch("b2") as batch:
        assert drop(DuplicateFilter(batch, stable=False), PLAIN) == []


def test_each_unconfirmed_copy_is_repeated_once(open_batch: OpenBatch) -> None:
    with open_batch("b1") as batch:
        sealed(batch, PLAIN)
        sealed(batch, PLAIN, PLAIN)
        sealed(batch, PLAIN, settled=True)
    with open_batch("b2") as batch:
        repetitions = DuplicateFilter(batch, stable=False)
        dropped = drop(repetitions, PLAIN)
        assert len(dropped) == 3
        repetitions.note_confirmed(dropped[:1], None)
        repetitions.note_connection(stable=False)
        rest = drop(repetitions, PLAIN)
        assert len(rest) == 2, "those whose acknowledgement was lost with the connection come again"
        repetitions.note_confirmed(rest, None)
        repetitions.note_connection(stable=False)
        assert drop(repetitions, PLAIN) == []
    with open_batch("b3") as batch:
        assert drop(DuplicateFilter(batch, stable=False), PLAIN) == [], "that is on disk too"


def test_a_segment_with_further_copies_stays_unconfirmed(open_batch: OpenBatch) -> None:
    other = replace(PLAIN, body="cancelled")
    with open_batch() as batch:
        sealed(batch, PLAIN, other)
        repetitions = DuplicateFilter(batch, stable=False)
        repetitions.note_confirmed(drop(repetitions, PLAIN), None)
    with open_batch() as batch:
        assert len(drop(DuplicateFilter(batch, stable=False), other)) == 1


def test_what_is_sealed_over_a_connection_is_not_repeated_over_the_same_one(open_batch: OpenBatch) -> None:
    with open_batch() as batch:
        repetitions = DuplicateFilter(batch, stable=False)
        first, second = sealed(batch, PLAIN, TIMED), sealed(batch, PLAIN)
        assert drop(repetitions, PLAIN) == drop(repetitions, TIMED) == []
        repetitions.note_confirmed([], first)
        repetitions.note_connection(stable=False)
        assert [each.segment.name for each in drop(repetitions, PLAIN)] == [second.file]


def test_a_copy_that_says_when_it_was_sent_is_repeated_after_its_confirmation(open_batch: OpenBatch) -> None:
    """A killed RabbitMQ forgets confirmed acknowledgements, each time it is killed."""
    with open_batch("b1") as batch:
        sealed(batch, TIMED, settled=True)
    with open_batch("b2") as batch:
        repetitions = DuplicateFilter(batch, stable=False)
        for _ in range(2):
            dropped = drop(repetitions, TIMED)
            assert len(dropped) == 1
            repetitions.note_confirmed(dropped, None)
            repetitions.note_connection(stable=False)


def test_an_id_of_the_broker_proves_a_repetition(open_batch: OpenBatch) -> None:
    with open_batch() as batch:
        sealed(batch, PLAIN, settled=True)
        repetitions = DuplicateFilter(batch, stable=True)
        assert len(drop(repetitions, PLAIN)) == 9
        assert repetitions.check_duplicate(KEY, flagged(replace(PLAIN, body="cancelled"))) is None
