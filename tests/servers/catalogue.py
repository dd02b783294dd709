"""Which brokers there are, by the names tests and the command line use."""

from __future__ import annotations

import os
from pathlib import Path

from tests.servers.activemq import ActiveMQClassic
from tests.servers.artemis import Artemis
from tests.servers.broker import Broker, RunningBroker, variable_of
from tests.servers.rabbitmq import RabbitMQ

BROKERS: dict[str, type[Broker]] = {kind.name: kind for kind in (ActiveMQClassic, Artemis, RabbitMQ)}


def named_by_environment(kind: str) -> RunningBroker | None:
    """Return the running broker the environment names for a kind, if it does."""
    return RunningBroker(kind) if os.environ.get(variable_of(kind)) else None


def make_broker(kind: str, folder: Path, *, guarded: bool = True) -> Broker:
    """Return a broker of our own with its data in the folder, not started yet."""
    return BROKERS[kind](folder, guarded=guarded)
