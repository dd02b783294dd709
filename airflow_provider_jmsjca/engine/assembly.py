"""Puts the parts of a listener together."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_jmsjca.core.delivery import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.events import StopAsked
from airflow_provider_jmsjca.core.delivery.room import Room
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker
from airflow_provider_jmsjca.engine.calls import Caller, Handler, RecordFunction
from airflow_provider_jmsjca.engine.direct import DirectWay, allows_direct_way
from airflow_provider_jmsjca.engine.dispatch import Dispatcher
from airflow_provider_jmsjca.engine.listener_settings import ListenerSettings, bounded
from airflow_provider_jmsjca.engine.outage import Connect
from airflow_provider_jmsjca.engine.settle import Settler


def assemble(
    settings: ListenerSettings,
    connect: Connect,
    handler: Handler,
    record: RecordFunction | None,
    tracker: RedeliveryTracker,
    *,
    clock: Callable[[], float],
    chance: Callable[[], float],
    gives_up: Callable[[], bool],
    on_stop: Callable[[StopAsked], object],
    limit: int | None = None,
    room: Room | None = None,
) -> Dispatcher:
    """Return what drives one run of a listener, from its start to its stop.

    Args:
        settings: How to consume.
        connect: Opens one connection or raises `JmsError`.
        handler: Called with each message.
        record: Stores attempts.
        tracker: What is known of messages from earlier runs.
        clock: Seconds, monotonic.
        chance: A random number, 0 up to but not including 1.
        gives_up: Asked when the broker refuses for good.
        on_stop: Called when the handler asks for a stop.
        limit: No more messages than this are settled; `None`: no limit.
        room: Bounds it together with others, in place of the limit.
    """
    if limit is not None:
        settings = bounded(settings, limit)
    delivery = settings.delivery
    if room is None and (delivery.further or delivery.in_progress):
        # Which message is next is the machine's choice, so the limit has to be its too.
        room = Room(delivery.concurrency, limit)
    share = None if room is None else room.join(lambda: None)
    machine = DeliveryMachine(delivery, tracker, chance, share)
    dispatcher = Dispatcher(settings, machine, connect, clock, takes_all=room is not None)
    if share is not None:
        share.wake = dispatcher.wake
    dispatcher.gives_up, dispatcher.on_stop = gives_up, on_stop
    dispatcher.admission.limit = limit if room is None else None
    settler = Settler(dispatcher)
    caller = Caller(dispatcher, settler, handler, record)
    dispatcher.perform = caller.perform
    if allows_direct_way(settings):
        dispatcher.admit = DirectWay(dispatcher, settler, caller.engine, caller.call_directly).take
    return dispatcher
