"""A delay that is broken off is no attempt, however often that happens, in both drivers: J129, J130."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.delivering.receiver import Receiver
from airflow_provider_jmsjca.transports.base import Consumer, OnReceived, Received, Subscription
from tests.unit.engine import listening, streaming
from tests.unit.engine.brokers import LesserConnection
from tests.unit.engine.listening import Site, every_mode, fail, until

CUTS = 6
MESSAGES = 12


def suspend(_: Site, activation: Listener) -> None:
    assert activation.drain()
    activation.resume()


def lose_the_connection(site: Site, activation: Listener) -> None:
    before = activation.statistics().connections
    site.broker.restart()
    until(lambda: activation.statistics().connections > before)


def restart(_: Site, activation: Listener) -> None:
    activation.restart()


@every_mode
@pytest.mark.parametrize("cut", [suspend, lose_the_connection, restart], ids=lambda cut: cut.__name__)
@pytest.mark.parametrize("end", ["delete", "move(queue:dead)"])
def test_six_cuts_during_delays_take_no_message_out(
    site: Site, mode: dict[str, Any], cut: Callable[[Site, Listener], None], end: str
) -> None:
    site.send(*map(str, range(MESSAGES)))
    activation = site.activation(fail, redelivery_handling=f"1:600000; 3:{end}", **mode)
    activation.start()
    until(lambda: site.got)
    for _ in range(CUTS):
        # In its delay, or behind one that is.
        until(lambda: activation.state == "Up" and activation.statistics().in_flight > 0)
        until(lambda: not activation.statistics().active)
        cut(site, activation)
    until(lambda: activation.statistics().in_flight > 0)
    assert site.broker.depth("orders") == MESSAGES
    assert site.bodies("dead") == []
    assert set(site.attempts) <= {(str(number), 0) for number in range(MESSAGES)}, "one call each, at most"
    activation.stop()
    assert site.broker.depth("orders") == MESSAGES


def test_six_losses_take_no_message_out_of_a_stream_also_those_that_nobody_had_taken() -> None:
    site = streaming.Site()

    async def work() -> None:
        site.send("a", "b", "c")
        async with site.streaming(streaming.settings("1:600000; 3:delete", concurrency=3)) as stream:
            first = await streaming.one(stream)
            first.raised(ValueError("no stock"))  # the others are ready, and nobody takes them
            for _ in range(CUTS):
                await streaming.until(lambda: streaming.in_flight(stream) == 3)
                before = stream.counts
                site.broker.restart()
                await streaming.until(lambda: site.broker.connections == 1)
                assert (before.deleted, before.moved) == (0, 0)
            others = await streaming.take(stream, 2)
            assert sorted((each.message.body, each.seen) for each in others) == [("b", 0), ("c", 0)]
            assert stream.counts.deleted == 0
        assert sorted(site.bodies()) == ["a", "b", "c"]

    streaming.run(work())


def test_what_comes_back_after_a_broken_delay_is_counted_as_it_was() -> None:
    site = listening.Site()
    site.send("a")
    activation = site.activation(fail, redelivery_handling="1:300; 3:move(queue:dead)")
    activation.start()
    until(lambda: site.got)
    for _ in range(CUTS):
        lose_the_connection(site, activation)
    until(lambda: site.bodies("dead") == ["a"])
    assert site.attempts == [("a", 0), ("a", 1), ("a", 2)]
    site.close()


@pytest.mark.parametrize("mode", ["serial", "cc"])
def test_what_the_broker_has_back_before_it_is_taken_in_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The connection is gone when a thread looks at what has come, and nobody has noticed yet."""
    site = listening.Site()
    taken: list[object] = []
    take = Receiver.take

    def noting(receiver: Receiver) -> object:
        taken.append(take(receiver))
        return taken[-1]

    monkeypatch.setattr(Receiver, "take", noting)

    class Cut(LesserConnection):
        def consume(self, subscription: Subscription, on_received: OnReceived) -> Consumer:
            def cut(received: Received) -> None:
                if len(taken) == CUTS:
                    on_received(received)
                    return
                before = len(taken)
                site.broker.restart()  # the listener is told when this has returned
                on_received(received)
                until(lambda: len(taken) > before)

            return super().consume(subscription, cut)

        def call_soon(self, function: Callable[[], None]) -> None:
            function()  # another message has woken the thread

    site.send("a")
    activation = site.activation(
        fail,
        connect_with=lambda: Cut(site.broker),
        redelivery_handling="1:0; 3:move(queue:dead)",
        concurrency_mode=mode,
    )
    activation.start()
    until(lambda: site.bodies("dead") == ["a"])
    assert taken[:CUTS] == [None] * CUTS
    assert site.attempts == [("a", 0), ("a", 1), ("a", 2)]
    site.close()
