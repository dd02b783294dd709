"""Options of an activation's endpoint: the pool of handlers, and the container around them."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_jmsjca.core.options.option import Measure, Option, OptionType

_ENGINE = "engine"

ENDPOINT = (
    Option(
        name="endpoint_pool_max_size",
        value_type=OptionType.INTEGER,
        levels="A",
        default=15,
        minimum=1,
        jmsjca=("endpointPoolMaxSize",),
        weblogic=("max-beans-in-free-pool",),
        glassfish=("max-pool-size",),
        meaning="Handlers that may run at once in cc and sync.",
        source="J55, W2",
        acts=_ENGINE,
    ),
    Option(
        name="endpoint_pool_steady_size",
        value_type=OptionType.INTEGER,
        levels="A",
        default=10,
        minimum=0,
        jmsjca=("endpointPoolSteadySize",),
        weblogic=("initial-beans-in-free-pool",),
        glassfish=("steady-pool-size",),
        meaning="Threads kept ready, at most endpoint_pool_max_size.",
        source="J63, W1, W17",
        acts=_ENGINE,
    ),
    Option(
        name="endpoint_pool_resize_count",
        value_type=OptionType.INTEGER,
        levels="A",
        default=1,
        minimum=1,
        jmsjca=("endpointPoolResizeCount",),
        glassfish=("resize-quantity",),
        meaning="Threads added or removed at a time.",
        source="J63",
        why="threads are started when there is work for them",
    ),
    Option(
        name="endpoint_pool_resize_timeout",
        value_type=OptionType.DURATION,
        levels="A",
        default=timedelta(seconds=5),
        minimum=0,
        jmsjca=("endpointPoolResizeTimeout",),
        meaning="Time between two changes of the pool's size.",
        source="J63",
        why="threads are started when there is work for them; pool_idle_timeout ends them",
    ),
    Option(
        name="endpoint_exception_redelivery_attempts",
        value_type=OptionType.INTEGER,
        levels="A",
        default=1,
        minimum=0,
        jmsjca=("endpointExceptionRedeliveryAttempts",),
        meaning="Deliveries repeated by the container after an exception.",
        source="J63",
        why="JMSJCA checks its range and leaves redelivery to redelivery_handling, and so do we",
    ),
    Option(
        name="endpoint_exception_redelivery_interval",
        value_type=OptionType.DURATION,
        levels="A",
        default=timedelta(milliseconds=100),
        minimum=0,
        alias_unit=Measure.MILLISECONDS,
        jmsjca=("endpointExceptionRedeliveryInterval",),
        meaning="Time between those repetitions.",
        source="J63",
        why="JMSJCA checks its range and leaves redelivery to redelivery_handling, and so do we",
    ),
)
