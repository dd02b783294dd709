"""What an activation spec asks of a listener."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import cycle

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.backoff import RECONNECT
from airflow_provider_jmsjca.core.configuration.precedence import Layer, resolve
from airflow_provider_jmsjca.core.options import OPTIONS, Level, Option
from airflow_provider_jmsjca.engine.delivering.settings import (
    BARE,
    ListenerContext,
    bounded,
    listener_settings,
)

SECONDS = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("given", "init", "most"),
    [
        ({}, 0, 0),
        ({"init-suspend-seconds": "60"}, 60, 60),
        ({"max-suspend-seconds": "60"}, 60, 60),
        ({"init_suspend": 10, "max_suspend": 60}, 10, 60),
        ({"max_suspend": 20}, 20, 20),
        ({"max_suspend": 0}, 0, 0),
        ({"init_suspend": 60, "max_suspend": 0}, 0, 0),
    ],
)
def test_suspensions_hold_where_one_was_set_be_it_to_its_default_w24_w26(
    given: dict[str, object], init: int, most: int
) -> None:
    outage = listener_settings(ActivationSpec(destination="queue://q", **given)).delivery.outage
    assert (outage.init_suspend, outage.max_suspend) == (init * SECONDS, most * SECONDS)


@pytest.mark.parametrize(
    ("given", "steps"),
    [({}, RECONNECT.steps), ({"jms-polling-interval-seconds": "10"}, (10 * SECONDS,))],
)
def test_a_polling_interval_that_was_set_replaces_growing_pauses_w16_j122(
    given: dict[str, object], steps: tuple[timedelta, ...]
) -> None:
    outage = listener_settings(ActivationSpec(destination="queue://q", **given)).delivery.outage
    assert outage.backoff.steps == steps


def test_minimal_reconnect_logging_comes_from_any_level_j108() -> None:
    layers = [
        Layer(
            level=Level.CONNECTION_FACTORY,
            source="connection",
            fields={"options": "JMSJCA.minimalreconnectlogging=1"},
        ),
        ActivationSpec(destination="queue://q").layer(),
    ]
    spec = ActivationSpec.from_resolved(resolve(layers))
    assert listener_settings(spec).delivery.outage.minimal_logging


@pytest.mark.parametrize("name", ["confirm_acknowledgements", "non_blocking_redelivery"])
def test_our_own_ways_are_fields_of_a_spec_and_of_its_surroundings(name: str) -> None:
    plain = ActivationSpec(destination="queue://q")
    asked = ActivationSpec(destination="queue://q", **{name: "true"})

    def found(spec: ActivationSpec, context: ListenerContext = BARE) -> bool:
        settings = listener_settings(spec, context)
        return (
            settings.delivery.non_blocking_redelivery
            if name == "non_blocking_redelivery"
            else settings.confirm_acknowledgements
        )

    assert not found(plain)
    assert found(asked)
    assert found(plain, replace(BARE, **{name: True}))


_NO_MEANING = [option for option in OPTIONS if option.reason and option.allowed_at(Level.ACTIVATION)]


@pytest.mark.parametrize("option", _NO_MEANING, ids=lambda option: option.name)
def test_what_has_no_meaning_here_is_accepted_and_changes_nothing(option: Option) -> None:
    """Under each of its spellings.

    J63, J84, J92, J93, J103, J109, J110, J111, J112; W6, W10, W13, W14, W18, W19, W20, W39, W40, W42.
    """
    without = listener_settings(ActivationSpec(destination="queue://q"))
    for value, (_, spelling) in zip(cycle(("anything", 1, True)), option.spellings(), strict=False):
        spec = ActivationSpec(destination="queue://q", **{spelling: value})
        assert ActivationSpec.from_yaml(spec.to_yaml()).without_effect == spec.without_effect
        assert replace(listener_settings(spec), spec=without.spec) == without
        (said,) = spec.without_effect
        assert said == f"{option.name}: accepted, no effect: {option.reason}"


@pytest.mark.parametrize(
    ("given", "promised"),
    [
        ({}, True),
        ({"destination": ["queue://q", "queue://r"]}, True),
        ({"concurrency_mode": "cc", "endpoint_pool_max_size": 1, "batch_size": 10}, True),
        ({"concurrency_mode": "cc", "endpoint_pool_max_size": 1, "batch_size": 201}, False),
        ({"concurrency_mode": "cc", "endpoint_pool_max_size": 2, "batch_size": 10}, False),
        ({"concurrency_mode": "cc", "endpoint_pool_max_size": 4}, False),
        ({"concurrency_mode": "sync", "endpoint_pool_max_size": 2}, False),
    ],
)
def test_one_unit_of_work_at_a_time_promises_to_settle_in_order(
    given: dict[str, object], promised: bool
) -> None:
    subscriptions = listener_settings(ActivationSpec(**{"destination": "queue://q", **given})).subscriptions
    assert {each.in_order for each in subscriptions} == {promised}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"endpoint_pool_max_size": 15, "batch_size": 100}, (15, 100)),
        ({"endpoint_pool_max_size": 1, "batch_size": 100}, (1, 200)),
        ({"endpoint_pool_max_size": 4, "batch_size": 100, "prefetch": 1000}, (4, 100)),
        ({"endpoint_pool_max_size": 1, "batch_size": 100, "prefetch": 50}, (1, 100)),
        ({"endpoint_pool_max_size": 1, "batch_size": 100, "prefetch": 500}, (1, 500)),
        ({"endpoint_pool_max_size": 4, "batch_size": 100, "concurrency_mode": "sync"}, (4, 100)),
        ({"endpoint_pool_max_size": 4, "batch_size": 201}, None),
        ({"endpoint_pool_max_size": 4}, None),
        ({"batch_size": 10, "destination": ["queue://q", "queue://r"]}, None),
        ({"batch_size": 10, "destination": "topic://t"}, None),
        ({"batch_size": 10, "destination": "topic://t", "concurrency_mode": "sync"}, (1, 20)),
        ({"batch_size": 10, "in_progress_destination": "queue://p"}, None),
    ],
)
def test_each_batch_has_a_consumer_of_its_own(
    given: dict[str, object], expected: tuple[int, int] | None
) -> None:
    """One acknowledgement settles it where the broker can do that."""
    spec = {"destination": "queue://q", "concurrency_mode": "cc", **given}
    units = listener_settings(ActivationSpec(**spec)).unit_consumers
    assert (units and (units.count, units.prefetch)) == expected


@pytest.mark.parametrize(("limit", "expected"), [(1000, (15, 100)), (250, (2, 100)), (30, (1, 40))])
def test_a_limited_run_sets_aside_few_messages_for_its_batches(limit: int, expected: tuple[int, int]) -> None:
    settings = listener_settings(
        ActivationSpec(destination="queue://q", concurrency_mode="cc", batch_size=100)
    )
    units = bounded(settings, limit).unit_consumers
    assert units is not None
    assert (units.count, units.prefetch) == expected


def test_what_a_spec_sets_without_effect_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    spec = ActivationSpec(
        destination="queue://orders", name="said once", ejb_class="a.B", dispatch_policy="c"
    )
    for _ in range(2):
        listener_settings(spec)
    (said,) = [text for text in caplog.messages if "said once" in text]
    assert "ejb_class: accepted, no effect: the handler is a Python function" in said
    assert "dispatch_policy: accepted" in said


def test_a_name_of_a_subscription_that_is_not_durable_has_no_effect() -> None:
    """A topic's messages are lost while nobody listens, whatever the name says."""
    named = ActivationSpec(destination="topic://prices", subscription_name="risk")
    (said,) = named.without_effect
    assert said.startswith("subscription_name: no effect: subscription_durability is non_durable; expected")
    assert named.replace(subscription_durability="durable").without_effect == ()
