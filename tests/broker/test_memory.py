"""Memory stays flat, however many messages pass: the short form of `make soak`."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca.transports.base import ConnectionSettings
from tests.bench import soak

MESSAGES = 50_000
SAMPLES_EVERY = 10_000
# A hundred bytes left behind by each message would be 3.8 MiB in the 40,000 after the warm-up.
MOST_GROWTH_MEBIBYTES = 3.0


@pytest.mark.parametrize("kind", ["vm", "activemq"])
def test_memory_stays_flat_over_many_messages(kind: str, request: pytest.FixtureRequest) -> None:
    """Issue 5, J129: also what redelivery handling remembers is bounded."""
    if kind == "vm":
        settings = ConnectionSettings(scheme="vm", hosts=((request.node.name, None),))
    else:
        settings = request.getfixturevalue(kind).settings()
    samples = list(soak.run(settings, MESSAGES, SAMPLES_EVERY))
    assert [sample.messages for sample in samples] == [10_000, 20_000, 30_000, 40_000, 50_000]
    grown = [sample.mebibytes - samples[0].mebibytes for sample in samples]
    assert grown[-1] < MOST_GROWTH_MEBIBYTES, grown
