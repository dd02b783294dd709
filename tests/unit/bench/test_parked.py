"""The measurement of limbo: what it releases is what was parked, and it fails on anything else."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca.store.base import LimboMessage
from airflow_provider_jmsjca.store.sql.limbo import SqlLimbo
from airflow_provider_jmsjca.transports.base import ConnectionSettings
from airflow_provider_jmsjca.transports.memory import memory_broker as broker
from tests.bench import parked


def test_what_is_measured_is_the_release_of_each_message_once() -> None:
    lines = list(parked.report(ConnectionSettings(scheme="vm", hosts=(("bench", None),)), 250))
    sent = [each.properties.get("number") for each in broker("bench").messages("bench.parked")]
    assert sent[:250] == list(range(250))
    assert sent[250:] == [None] * 250  # the same without limbo
    assert ["page" in line for line in lines] == [True] * 4 + [False]


@pytest.mark.parametrize("kept", [slice(1, None), slice(0, 0)], ids=["one", "all"])
def test_a_release_that_leaves_messages_behind_is_no_rate(
    kept: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = SqlLimbo.lease

    def fewer(*given: object, **how: object) -> list[LimboMessage]:
        return lease(*given, **how)[kept]  # type: ignore[arg-type]

    monkeypatch.setattr(SqlLimbo, "lease", fewer)
    settings = ConnectionSettings(scheme="vm", hosts=(("bench.less", None),))
    with pytest.raises(AssertionError, match="of 250 parked messages"):
        list(parked.report(settings, 250))
