"""The queue against a plain model: every message is where it should be, in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports.memory.message_queue import START, MessageQueue, QueuedMessage


class Client:
    """A consumer with room for so many, interested in some."""

    def __init__(self, room: int, remainder: int | None) -> None:
        self.position = START
        self.held: list[QueuedMessage] = []
        self._room = room
        self._remainder = remainder

    def has_credit(self) -> bool:
        return len(self.held) < self._room

    def matches(self, message: JmsMessage) -> bool:
        return self._remainder is None or int(str(message.body)) % 3 == self._remainder

    def take(self, entry: QueuedMessage) -> None:
        self.held.append(entry)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 9)),
        st.tuples(st.just("settle"), st.integers(0, 2)),
        st.tuples(st.just("back"), st.integers(0, 2)),
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_nothing_is_lost_or_doubled_and_whoever_has_room_gets_the_oldest(
    steps: list[tuple[str, int]],
) -> None:
    queue = MessageQueue()
    clients = [Client(2, None), Client(1, 0), Client(3, 1)]
    for client in clients:
        queue.join(client)
    living: dict[int, QueuedMessage] = {}
    for sequence, (what, argument) in enumerate(steps):
        if what == "add":
            entry = QueuedMessage(JmsMessage.text(str(sequence), priority=argument), sequence)
            living[sequence] = entry
            queue.add(entry)
        elif clients[argument].held:
            entry = clients[argument].held.pop(0)
            if what == "settle":
                queue.remove(entry)
                del living[entry.position[1]]
            else:
                queue.restore(entry)
        queue.dispatch(0)

        assert queue.entries(0) == sorted(living.values(), key=lambda entry: entry.position)
        held = [entry for client in clients for entry in client.held]
        assert len(set(map(id, held))) == len(held)
        assert {id(entry) for entry in living.values() if not entry.ready} == {id(entry) for entry in held}
        for client in clients:
            waiting = [entry for entry in living.values() if entry.ready and client.matches(entry.message)]
            assert not (client.has_credit() and waiting)


def test_consumers_take_turns() -> None:
    queue = MessageQueue()
    clients = [Client(10, None), Client(10, None)]
    for client in clients:
        queue.join(client)
    for sequence in range(6):
        queue.add(QueuedMessage(JmsMessage.text(str(sequence)), sequence))
    queue.dispatch(0)
    assert [[entry.message.body for entry in client.held] for client in clients] == [
        ["0", "2", "4"],
        ["1", "3", "5"],
    ]


def test_a_forgotten_queue_is_one_without_messages_and_consumers() -> None:
    queue = MessageQueue()
    assert queue.idle
    entry = QueuedMessage(JmsMessage.text("0"), 1)
    queue.add(entry)
    assert not queue.idle
    queue.remove(entry)
    queue.remove(entry)
    assert queue.idle
    client = Client(1, None)
    queue.join(client)
    assert not queue.idle
    queue.leave(client)
    queue.leave(client)
    assert queue.idle
