"""Drives a machine by hand: what is sent, and what it decides."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from airflow_provider_jmsjca.core.delivery import decisions as d
from airflow_provider_jmsjca.core.delivery import events as e
from airflow_provider_jmsjca.core.delivery.concurrency import Permits
from airflow_provider_jmsjca.core.delivery.machine import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import RedeliveryHandling, RedeliveryTracker

SETTINGS = DeliverySettings(destination=Destination.queue("orders"), transaction_timeout=None)
FAILURE = Failure(class_names=("shop.OutOfStock", "builtins.Exception"), message="no more")
SECOND = timedelta(seconds=1)
D = TypeVar("D")


class Run:
    """A machine that is up, with a clock."""

    def __init__(
        self, *, handling: str = "", settings: DeliverySettings = SETTINGS, room: Permits | None = None
    ) -> None:
        self.now = 100.0
        self.tracker = RedeliveryTracker()
        settings = replace(settings, handling=RedeliveryHandling.parse(handling))
        self.taken_back: list[tuple[str, int]] = []
        self.machine = DeliveryMachine(
            settings, self.tracker, lambda: 0.0, room, lambda *message: self.taken_back.append(message)
        )
        self.delivery = 0
        self.send(e.Start())
        self.send(e.ConnectionOpened())

    def send(self, event: e.Event) -> list[d.Decision]:
        """Return what is decided, without the log."""
        return [
            decision for decision in self.machine.handle(event, self.now) if not isinstance(decision, d.Log)
        ]

    def only(self, kind: type[D], event: e.Event) -> D:
        """Send, and return the one decision there must be."""
        (decision,) = self.send(event)
        assert isinstance(decision, kind)
        return decision

    def message(self, message_id: str | None = None, *, seen: int = 0, **values: object) -> e.MessageArrived:
        """Return the next arrival, of a message that was seen so often before."""
        self.delivery += 1
        name = message_id or f"ID:{self.delivery}"
        if seen:
            self.tracker.at_least(name, seen - 1)
            values["redelivered"] = True
        return e.MessageArrived(
            delivery=self.delivery,
            message_id=name,
            **values,  # type: ignore[arg-type]  # each test gives what fits
        )

    def arrive(self, message_id: str | None = None, *, seen: int = 0, **values: object) -> list[d.Decision]:
        return self.send(self.message(message_id, seen=seen, **values))

    def tick(self) -> list[d.Decision]:
        """Let the time pass up to the deadline."""
        assert self.machine.deadline is not None
        self.now = self.machine.deadline
        return self.send(e.Tick())
