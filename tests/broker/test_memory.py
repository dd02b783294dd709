"""Memory stays flat, however many messages pass: the short form of `make soak`."""

from __future__ import annotations

import contextlib
import gc
import sys
import uuid

import pytest

from airflow_provider_jmsjca import ConnectionSettings, Destination, connect
from tests.bench import soak

MESSAGES = 100_000
WARM_UP = 50_000
# An object left behind by every tenth message is too many; other threads of this process allocate far less.
MOST_BLOCKS_PER_MESSAGE = 0.1
# What one object may hold that grows: the process has other tests' memory too, which comes and goes in MiB.
MOST_GROWTH_MEBIBYTES = 16.0
LOOKS = 300


def stays_flat(warm: soak.Sample, end: soak.Sample) -> None:
    """Assert that messages between the two samples left nothing behind."""
    assert end.blocks - warm.blocks < MOST_BLOCKS_PER_MESSAGE * (end.messages - warm.messages)
    assert end.mebibytes - warm.mebibytes < MOST_GROWTH_MEBIBYTES


@pytest.mark.parametrize("kind", ["vm", "activemq"])
def test_memory_stays_flat_over_many_messages(kind: str, request: pytest.FixtureRequest) -> None:
    """J129: also what redelivery handling remembers is bounded."""
    if kind == "vm":
        settings = ConnectionSettings(scheme="vm", hosts=((request.node.name, None),))
    else:
        settings = request.getfixturevalue(kind).settings()
    warm, end = soak.run(settings, MESSAGES, WARM_UP)
    assert (warm.messages, end.messages) == (WARM_UP, MESSAGES)
    stays_flat(warm, end)


def test_memory_stays_flat_while_several_threads_send(request: pytest.FixtureRequest) -> None:
    """The way of units of work, through the settler.

    By 32,768 messages what is remembered of settled ones has its full size.
    """
    settings = ConnectionSettings(scheme="vm", hosts=((request.node.name, None),))
    mode = {"concurrency_mode": "cc", "endpoint_pool_max_size": 3}
    warm, end = soak.run(settings, 50_000, 35_000, sends=True, **mode)
    stays_flat(warm, end)


@pytest.mark.parametrize(
    ("kind", "look", "most"),
    [
        ("activemq", "browse", 1),
        # Each look has a queue for answers; what is known of the last 1,024 destinations is kept.
        ("artemis", "backlog", 3),
    ],
)
def test_looks_leave_nothing_behind(kind: str, look: str, most: int, request: pytest.FixtureRequest) -> None:
    """A trigger looks every second for months, over one connection."""
    queue = Destination.queue(f"looks.{uuid.uuid4().hex}")
    with contextlib.closing(connect(request.getfixturevalue(kind).settings())) as connection:

        def blocks(looks: int) -> int:
            for _ in range(looks):
                if look == "browse":
                    assert list(connection.browse(queue)) == []
                else:
                    assert connection.backlog(queue).waiting == 0
            gc.collect()
            return sys.getallocatedblocks()

        before = blocks(LOOKS)
        assert blocks(LOOKS) - before < most * LOOKS
