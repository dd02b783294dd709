"""A listener on each member of a distributed destination, over brokers of this process.

W12, W17: one on each member, traffic goes on where a member fails. W46: a topic's message reaches each.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.activations.every_member import every_member
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.activations.shared_subscription import load_balancing
from airflow_provider_jmsjca.engine.collecting.batch_spec import EndReason
from airflow_provider_jmsjca.engine.delivering.settings import ListenerContext, listener_settings
from airflow_provider_jmsjca.engine.limbo import LimboSender
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.errors import (
    AuthenticationError,
    ConfigurationError,
    PermanentBrokerError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.store.base import EVERYTHING, AttemptSelection, Store
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import (
    Connection,
    ConnectionSettings,
    OnReceived,
    Outgoing,
    Subscription,
)
from airflow_provider_jmsjca.transports.members import (
    limbo_name,
    member_settings,
    settings_for_member,
    split_limbo_name,
)
from airflow_provider_jmsjca.transports.memory import MemoryBroker as Broker
from airflow_provider_jmsjca.transports.memory import memory_broker as broker
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection
from tests.memory_store import MemoryStore
from tests.pace import at_most
from tests.unit.engine.listening import MODES, ORDERS, QUICK, until

AT_ONCE = Backoff(steps=(timedelta(milliseconds=20),))
SPEC: dict[str, Any] = {
    "name": "orders",
    "destination": "queue://orders",
    "distributed_destination_connection": "every_member",
}


class Cluster:
    """Brokers that know nothing of each other, and listeners on all of them."""

    def __init__(self, size: int) -> None:
        name = f"member-{uuid.uuid4().hex[:8]}"
        self.brokers: list[Broker] = [broker(f"{name}-{number}") for number in range(size)]
        self.names = [each.name for each in self.brokers]
        self.settings = ConnectionSettings(scheme="vm", hosts=tuple((each, None) for each in self.names))
        self.got: list[str] = []
        self.running = self.most = 0
        self._lock = threading.Lock()
        self._made: list[Listener] = []

    def send(self, member: int, *bodies: str, to: Destination = ORDERS, **properties: Any) -> None:
        connection = connect(replace(self.settings, hosts=((self.names[member], None),)))
        connection.send(
            Outgoing(destination=to, message=JmsMessage.text(body, properties)) for body in bodies
        )
        connection.close()

    def activation(
        self,
        handler: Callable[[Any], object] = lambda _: None,
        *,
        settings: ConnectionSettings | None = None,
        connect: Callable[[ConnectionSettings], Connection] = connect,
        store: Store | None = None,
        **spec: Any,
    ) -> Listener:
        """Return an activation that notes every delivery, and how many run at once."""

        def noting(delivery: Any) -> None:
            if delivery.end_of_batch:
                return
            with self._lock:
                self.got.append(delivery.body)
                self.running += 1
                self.most = max(self.most, self.running)
            try:
                handler(delivery)
            finally:
                with self._lock:
                    self.running -= 1

        found = every_member(
            ActivationSpec(**SPEC | spec),
            settings or self.settings,
            ListenerContext(store=store, jms_conn_id="" if store is None else "orders"),
            connect=connect,
        )
        assert found is not None
        members = tuple(
            replace(
                each,
                settings=replace(
                    each.settings,
                    delivery=replace(
                        each.settings.delivery,
                        outage=replace(each.settings.delivery.outage, backoff=AT_ONCE),
                    ),
                ),
            )
            for each in found.consumers
        )
        made = Listener(replace(found, consumers=members), noting, chance=lambda: 0.0)
        self._made.append(made)
        return made

    def depths(self, queue: str = "orders") -> list[int]:
        return [each.depth(queue) for each in self.brokers]

    def close(self) -> None:
        for made in self._made:
            made.stop(timedelta(seconds=1))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(2)
    yield made
    made.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: str(mode["concurrency_mode"]))
def test_every_member_is_consumed(cluster: Cluster, mode: dict[str, Any]) -> None:
    """W12: each message once, from wherever it is; the counts are sums."""
    first = [f"a{number}" for number in range(20)]
    second = [f"b{number}" for number in range(7)]
    cluster.send(0, *first)
    cluster.send(1, *second)
    activation = cluster.activation(**mode)
    counts = activation.run(idle_for=QUICK)
    assert sorted(cluster.got) == sorted(first + second)
    assert (counts.delivered, counts.committed) == (27, 27)
    assert {each.name: each.counts.committed for each in activation.runs} == dict(
        zip(cluster.names, (20, 7), strict=True)
    )
    statistics = activation.statistics()
    assert (statistics.counts.committed, statistics.connections, statistics.active) == (27, 2, 0)
    assert activation.ended_by is EndReason.IDLE
    assert activation.missing == ()
    assert cluster.depths() == [0, 0]


def test_serial_is_one_at_a_time_and_takes_turns(cluster: Cluster) -> None:
    """J81: whatever the number of members; a long backlog on one doesn't keep the other waiting."""
    cluster.send(0, *(f"a{number}" for number in range(50)))
    cluster.send(1, *(f"b{number}" for number in range(5)))
    both = threading.Event()

    def handle(delivery: Any) -> None:
        if not both.is_set():
            until(lambda: activation.states == dict.fromkeys(cluster.names, ActivationState.UP))
            until(lambda: activation.statistics().in_flight == 55)
            both.set()
        del delivery

    activation = cluster.activation(handle)
    activation.run(max_messages=55)
    assert cluster.most == 1
    # The first may have been any, and the other member joins when its thread has run.
    assert {f"b{number}" for number in range(5)} <= set(cluster.got[:25])
    for letter in "ab":
        mine = [body for body in cluster.got if body[0] == letter]
        assert mine == sorted(mine, key=lambda body: int(body[1:]))


@pytest.mark.parametrize("mode", ["cc", "sync"])
def test_the_pool_is_of_all_members(cluster: Cluster, mode: str) -> None:
    """W2: endpoint_pool_max_size bounds handlers of all members together, and is used up."""
    for member in (0, 1):
        cluster.send(member, *(f"{member}{number}" for number in range(10)))
    full = threading.Event()

    def handle(_: Any) -> None:
        if cluster.running == 3:
            full.set()
        assert full.wait(5)

    cluster.activation(handle, concurrency_mode=mode, endpoint_pool_max_size=3).run(max_messages=20)
    assert cluster.most == 3
    assert cluster.depths() == [0, 0]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: str(mode["concurrency_mode"]))
def test_max_messages_counts_all_and_never_more(cluster: Cluster, mode: dict[str, Any]) -> None:
    for member in (0, 1):
        cluster.send(member, *(f"{member}{number}" for number in range(20)))
    activation = cluster.activation(**mode)
    counts = activation.run(max_messages=15)
    assert (counts.committed, counts.delivered, activation.ended_by) == (15, 15, EndReason.COUNT)
    assert sum(cluster.depths()) == 25


def test_batches(cluster: Cluster) -> None:
    """J183: a batch is of one member; its transaction is one of that broker."""
    for member in (0, 1):
        cluster.send(member, *(f"{member}{number}" for number in range(10)))
    batches: list[set[str]] = []

    def handle(delivery: Any) -> None:
        if delivery.batch_index == 0:
            batches.append(set())
        batches[-1].add(delivery.body[0])

    # Sizes of one unit at a time, so that `batches` needs no lock.
    activation = cluster.activation(handle, concurrency_mode="cc", endpoint_pool_max_size=1, batch_size=4)
    assert activation.run(idle_for=QUICK * 2).committed == 20
    assert all(len(each) == 1 for each in batches)


def test_selectors_dead_letters_and_what_is_sent_stay_at_their_member(cluster: Cluster) -> None:
    """J135, J57: `$`, the selector and the transaction are those of the message's own broker."""

    def handle(delivery: Any) -> None:
        delivery.send("queue://out", JmsMessage.text(delivery.body))
        if "bad" in delivery.body:
            raise ValueError("no stock")

    for member in (0, 1):
        cluster.send(member, f"good {member}", f"bad {member}", region="eu")
        cluster.send(member, "other", region="us")
    activation = cluster.activation(
        handle, message_selector="region = 'eu'", redelivery_handling="1:move(queue:$.dlq)"
    )
    counts = activation.run(idle_for=QUICK)
    assert (counts.committed, counts.moved, counts.rolled_back) == (2, 2, 2)
    for member, each in enumerate(cluster.brokers):
        assert [message.body for message in each.messages("orders.dlq")] == [f"bad {member}"]
        assert [message.body for message in each.messages("out")] == [f"good {member}"]
        assert [message.body for message in each.messages("orders")] == ["other"]


def test_a_lost_member_does_not_stop_the_others_and_is_found_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """W12: killed with messages unsettled and started again; each is handled, the other goes on meanwhile."""
    caplog.set_level(logging.INFO)
    cluster.send(0, *(f"a{number}" for number in range(5)))
    cluster.send(1, "b0")
    activation = cluster.activation()
    activation.start()
    until(lambda: activation.counts.committed == 6)
    cluster.brokers[1].kill()
    until(lambda: activation.down == (cluster.names[1],))
    assert activation.state is ActivationState.UP
    assert activation.states[cluster.names[0]] is ActivationState.UP
    cluster.send(0, *(f"a{number}" for number in range(5, 10)))
    until(lambda: activation.counts.committed == 11)
    cluster.brokers[1].restart()
    cluster.send(1, "b1")
    until(lambda: activation.counts.committed == 12)
    assert activation.down == ()
    assert activation.stop()
    wanted = [f"a{number}" for number in range(10)] + ["b0", "b1"]
    assert Counter(cluster.got) == Counter(wanted)
    assert activation.statistics().connections == 3
    lines = [record.getMessage() for record in caplog.records]
    assert any(
        line.startswith(f"orders on {cluster.names[1]}: ") and "connecting again" in line for line in lines
    )
    assert not any(
        line.startswith(f"orders on {cluster.names[0]}: ") and "connecting again" in line for line in lines
    )


def test_a_call_of_a_lost_member_keeps_its_place_until_it_returns(cluster: Cluster) -> None:
    """J81: in serial mode nothing else runs beside it; its message comes again, the other's follow."""
    cluster.send(0, "a")
    called, free = threading.Event(), threading.Event()

    def handle(delivery: Any) -> None:
        if delivery.body == "a" and not free.is_set():
            called.set()
            assert free.wait(5)

    activation = cluster.activation(handle)
    activation.start()
    assert called.wait(5)
    cluster.brokers[0].restart()
    cluster.send(1, "b")
    until(lambda: activation.states == dict.fromkeys(cluster.names, ActivationState.UP))
    until(lambda: activation.runs[1].statistics().in_flight == 1)
    free.set()
    until(lambda: activation.counts.committed == 2)
    assert activation.stop()
    assert cluster.most == 1
    assert Counter(cluster.got) == {"a": 2, "b": 1}
    assert cluster.depths() == [0, 0]


def test_a_member_that_is_down_from_the_start(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """It doesn't keep an idle run from ending; who reads the log or the report knows that it was missing."""
    cluster.brokers[1].kill()
    cluster.send(0, "a")
    activation = cluster.activation()
    counts = activation.run(idle_for=QUICK)
    assert (counts.committed, activation.ended_by) == (1, EndReason.IDLE)
    assert activation.missing == (cluster.names[1],)
    assert (
        f"orders: not connected at the end of the run: {cluster.names[1]}; messages there were not consumed"
        in caplog.messages
    )


def test_while_all_members_are_down_it_is_not_idle(cluster: Cluster) -> None:
    for each in cluster.brokers:
        each.kill()
    activation = cluster.activation()
    activation.run(idle_for=QUICK, run_for=QUICK * 3)
    assert activation.ended_by is EndReason.TIME
    assert activation.missing == tuple(cluster.names)


def test_idle_waits_for_a_member_that_has_not_answered_yet(cluster: Cluster) -> None:
    """A slow first connection is no reason to leave what is there."""
    cluster.send(1, "b")

    def slow(settings: ConnectionSettings) -> Connection:
        if settings.hosts[0][0] == cluster.names[1]:
            time.sleep(3 * QUICK.total_seconds())
        return connect(settings)

    assert cluster.activation(connect=slow).run(idle_for=QUICK).committed == 1


def test_idle_waits_for_the_consumers_of_a_member_that_is_back(cluster: Cluster) -> None:
    """Its connection is up a moment before what it holds can come."""
    cluster.send(0, "a")
    cluster.send(1, "b")
    away, consuming = iter([True]), threading.Event()

    class Slow(MemoryConnection):
        def consume(self, subscription: Subscription, on_received: OnReceived) -> Any:
            if self.server is cluster.brokers[1]:
                consuming.set()
                time.sleep(3 * QUICK.total_seconds())
            return super().consume(subscription, on_received)

    def connect(settings: ConnectionSettings) -> Connection:
        server = broker(settings.hosts[0][0])
        if server is cluster.brokers[1] and next(away, False):
            raise TransientBrokerError("away")
        return Slow(server, settings)

    def handle(delivery: Any) -> None:
        if delivery.body == "a":
            assert consuming.wait(5)

    assert cluster.activation(handle, connect=connect).run(idle_for=QUICK).committed == 2


def test_a_member_that_refuses_is_tried_again_while_the_others_go_on(cluster: Cluster) -> None:
    """I5's rule for destinations, of whole members."""
    cluster.brokers[1].forbid(ORDERS)
    cluster.send(0, "a")
    activation = cluster.activation()
    activation.start()
    until(lambda: activation.counts.committed == 1)
    name = cluster.names[1]
    until(lambda: any(each.startswith(f"{name}: ") for each in activation.statistics().refused))
    assert activation.running
    cluster.brokers[1].permit(ORDERS)
    cluster.send(1, "b")
    until(lambda: activation.counts.committed == 2)
    assert activation.statistics().refused == ()
    assert activation.stop()


def test_if_all_refuse_that_is_a_fault(cluster: Cluster) -> None:
    for each in cluster.brokers:
        each.require_login("bob", "right")
    settings = replace(cluster.settings, username="bob", password="wrong")
    activation = cluster.activation(settings=settings)
    with pytest.raises(AuthenticationError):
        activation.run(run_for=timedelta(seconds=5))
    assert not activation.running


def test_if_all_refuse_without_a_run_all_stop(cluster: Cluster) -> None:
    for each in cluster.brokers:
        each.forbid(ORDERS)
    activation = cluster.activation()
    activation.start()
    until(lambda: not activation.running)
    assert all(isinstance(each.fault, PermanentBrokerError) for each in activation.runs)


def test_a_handler_stops_all(cluster: Cluster) -> None:
    """J172: the reason is the activation's, whichever member the message came from."""
    cluster.send(1, "b0", "b1")
    activation = cluster.activation(lambda delivery: delivery.stop_message_delivery("disk full"))
    activation.run(run_for=timedelta(seconds=5))
    assert (activation.ended_by, activation.stop_reason) == (EndReason.STOPPED, "disk full")
    assert cluster.got == ["b0"]
    assert cluster.depths() == [0, 1]
    assert set(activation.states.values()) == {ActivationState.DOWN}


def test_a_handler_stops_all_without_a_run(cluster: Cluster) -> None:
    cluster.send(0, "a")
    activation = cluster.activation(lambda delivery: delivery.stop_message_delivery("disk full"))
    activation.start()
    until(lambda: not activation.running)
    assert {each.stop_reason for each in activation.runs} == {"disk full"}


def test_suspend_drain_and_resume_act_on_all(cluster: Cluster) -> None:
    """W27."""
    free = threading.Event()
    activation = cluster.activation(lambda _: free.wait(5), concurrency_mode="cc", endpoint_pool_max_size=4)
    activation.start()
    for member in (0, 1):
        cluster.send(member, "x")
    until(lambda: cluster.running == 2)
    assert not activation.drain(timedelta(milliseconds=100))
    assert activation.suspended
    free.set()
    assert activation.drain(timedelta(seconds=5))
    for member in (0, 1):
        cluster.send(member, "y")
    assert activation.counts.committed == 2
    assert cluster.depths() == [1, 1]
    activation.resume()
    until(lambda: activation.counts.committed == 4)
    assert not activation.suspended


def test_a_stop_has_one_deadline_for_all(cluster: Cluster) -> None:
    """Handlers that hang on each member are left alone together, not one after the other."""
    free = threading.Event()
    activation = cluster.activation(lambda _: free.wait(10), concurrency_mode="cc", endpoint_pool_max_size=4)
    activation.start()
    for member in (0, 1):
        cluster.send(member, "x")
    until(lambda: cluster.running == 2)
    began = time.monotonic()
    assert not activation.stop(timedelta(seconds=0.5))
    assert time.monotonic() - began < 0.5 + at_most(0.45)
    free.set()
    assert cluster.depths() == [1, 1]


def test_it_starts_again_and_counts_anew(cluster: Cluster) -> None:
    cluster.send(0, "a")
    activation = cluster.activation()
    assert activation.run(max_messages=1).committed == 1
    cluster.send(1, "b")
    assert activation.run(max_messages=1).committed == 1
    assert cluster.got == ["a", "b"]


def test_a_topic_reaches_a_subscriber_on_each_member(cluster: Cluster) -> None:
    """W32, W46: what a member publishes is handled once; durable ones have client ids of their own."""
    settings = replace(cluster.settings, client_id="risk")
    activation = cluster.activation(
        settings=settings,
        destination="topic://prices",
        subscription_durability="durable",
        subscription_name="s",
    )
    assert [each.settings.client_id for each in activation.runs] == [f"risk-{name}" for name in cluster.names]
    activation.start()
    until(lambda: not activation.down)
    assert activation.stop()
    for member in (0, 1):
        cluster.send(member, "M1", to=Destination.topic("prices"))
    assert activation.run(idle_for=QUICK).committed == 2
    assert cluster.got == ["M1", "M1"]


def test_one_host_is_one_member() -> None:
    cluster = Cluster(1)
    cluster.send(0, "a")
    assert cluster.activation().run(max_messages=1).committed == 1
    cluster.close()


def test_management_shows_all_and_each(cluster: Cluster) -> None:
    """J116, J117, J118, J120."""
    activation = cluster.activation()
    assert activation.operate("getStatus") == "Down"
    activation.operate("start")
    until(lambda: not activation.down)
    cluster.brokers[0].kill()
    until(lambda: activation.down)
    shown = activation.attributes()
    assert (shown["Status"], shown["JMSServerType"]) == ("Up", "memory")
    assert shown["Members"] == {cluster.names[0]: "Connecting", cluster.names[1]: "Up"}
    assert f"url=vm://{','.join(cluster.names)}" in str(activation.operate("getProperties"))
    activation.reset_statistics()
    assert activation.statistics().connections == 0
    assert activation.operate("stop") is True
    assert not activation.running


def test_a_spec_for_one_connection_needs_no_members(cluster: Cluster) -> None:
    """W17: local_only is the default."""
    assert every_member(ActivationSpec(destination="queue://orders"), cluster.settings) is None


def test_the_names_of_members() -> None:
    settings = ConnectionSettings(scheme="stomp", hosts=(("a", 1), ("::1", 2)), client_id="c")
    found = member_settings(settings)
    assert {name: each.hosts for name, each in found.items()} == {
        "a:1": (("a", 1),),
        "[::1]:2": (("::1", 2),),
    }
    assert [each.client_id for each in found.values()] == ["c-a-1", "c---1-2"]
    assert settings_for_member("a:1", settings).hosts == (("a", 1),)
    with pytest.raises(ConfigurationError, match=r"no host b:1, expected it beside a:1, \[::1\]:2"):
        settings_for_member("b:1", settings)


def test_a_host_given_twice_is_refused() -> None:
    """Two members on one broker would take each other's messages and client ids."""
    settings = ConnectionSettings(scheme="stomp", hosts=(("a", 1), ("b", 1), ("a", 1)))
    with pytest.raises(ConfigurationError, match="got a:1 more than once, expected each host once"):
        every_member(ActivationSpec(**SPEC), settings)


def test_one_listener_does_not_take_it_for_itself() -> None:
    """No option is ignored in silence."""
    with pytest.raises(ConfigurationError, match="distributed_destination_connection: every_member needs"):
        listener_settings(ActivationSpec(**SPEC))


def test_a_distributed_subscription_is_refused() -> None:
    """J204, W12: two ways to distribute that contradict each other."""
    with pytest.raises(ConfigurationError, match="its messages pass through a queue of one broker"):
        load_balancing(
            ActivationSpec(
                **SPEC
                | {
                    "destination": "topic://prices",
                    "subscription_durability": "durable",
                    "subscription_name": "jmsjca://?distribution=1&subscribername=s",
                }
            )
        )


# -- the store -----------------------------------------------------------------------------------------------


def send_all_now(cluster: Cluster, store: Store) -> int:
    store.limbo.release(EVERYTHING, datetime.now(UTC))

    def connect_to(name: str) -> JmsConnection:
        conn_id, member = split_limbo_name(name)
        assert (conn_id, member is None) == ("orders", False)
        return JmsConnection(connect(settings_for_member(str(member), cluster.settings)))

    return LimboSender(store.limbo, connect_to).send_due().sent


def test_what_waits_in_limbo_goes_back_to_the_member_it_came_from_p15(cluster: Cluster) -> None:
    """P12, P15; W12: each member is a broker of its own, and has its own count."""
    store = MemoryStore()
    cluster.send(0, "bad")
    cluster.send(1, "good", "worse")

    def fail_bad(delivery: Any) -> None:
        if delivery.body != "good" and delivery.redelivery_count == 0:
            raise ValueError("no stock")

    activation = cluster.activation(
        fail_bad, store=store, use_store=True, non_blocking_redelivery=True, redelivery_handling="1:60000"
    )
    activation.start()
    until(lambda: activation.counts.parked == 2 and activation.counts.committed == 1)
    until(lambda: cluster.depths() == [0, 0])
    activation.stop()
    assert sorted(each.jms_conn_id for each in store.limbo.page()) == sorted(
        limbo_name("orders", name) for name in cluster.names
    )
    assert send_all_now(cluster, store) == 2
    assert cluster.depths() == [1, 1]
    assert (
        cluster.activation(fail_bad, store=store, use_store=True, non_blocking_redelivery=True)
        .run(max_messages=2)
        .settled
        == 2
    )
    assert sorted(cluster.got) == ["bad", "bad", "good", "worse", "worse"]
    assert store.attempts.page() == []


def test_a_member_with_messages_in_doubt_is_left_alone_until_the_doubt_is_cleared_i11(
    cluster: Cluster,
) -> None:
    """I11: fail_on_startup; W12: the others go on."""
    store = MemoryStore("dead/1/a")
    name = f"orders at vm://{cluster.names[1]}"
    store.attempts.begin(name, ["ID:1"], datetime.now(UTC))
    cluster.send(0, "a")
    cluster.send(1, "b")
    here = store.seen_from("here/2/b")
    activation = cluster.activation(store=here, use_store=True, in_doubt_events="fail_on_startup")
    activation.start()
    until(lambda: cluster.depths() == [0, 1])
    until(lambda: "are in doubt" in str(activation.statistics().refused))
    assert here.attempts.resolve(AttemptSelection(activation=name)) == 1
    until(lambda: cluster.depths() == [0, 0])
    assert cluster.got == ["a", "b"]


def test_limbo_keeps_names_of_250_characters() -> None:
    assert split_limbo_name(limbo_name("orders", "[::1]:61613")) == ("orders", "[::1]:61613")
    assert split_limbo_name("orders") == ("orders", None)
    with pytest.raises(ConfigurationError, match="has more than 250 characters"):
        limbo_name("orders", "h" * 250)
