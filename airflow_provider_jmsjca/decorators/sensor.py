"""`@task.jms_sensor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow.sdk import Context
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.decorators.first_argument import FirstArgumentOperator
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.sensors.jms import JmsSensor


class JmsSensorDecoratedOperator(FirstArgumentOperator, JmsSensor):
    """A sensor around a decorated function; see `jms_sensor_task`."""

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *JmsSensor.template_fields)
    custom_operator_name = "@task.jms_sensor"

    function_argument = "predicate"

    def _probe(self, context: Context) -> Any:
        self._bind(context)
        return super()._probe(context)

    def _accepts(self, message: JmsMessage) -> object:
        return self._call(message)


def jms_sensor_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Create a sensor from a function that returns whether a message is the expected one.

    The function's first argument is the `JmsMessage`; the others come from the call in the DAG or from the
    task's context. Rejected messages stay on the queue::

        @task.jms_sensor(destination="queue://orders", peek=False, deferrable=True)
        def large_order(message, least=1_000):
            return int(message.properties["amount"]) >= least

    The task's result is that of `JmsSensor`.

    Args:
        python_callable: The function.
        **kwargs: The arguments of `JmsSensor`, except `predicate`.

    Raises:
        ConfigurationError: A `predicate` is given.
    """
    if "predicate" in kwargs:
        raise ConfigurationError(
            "@task.jms_sensor: got predicate; leave it out, the decorated function is the predicate"
        )
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=False,
        decorated_operator_class=JmsSensorDecoratedOperator,
        **kwargs,
    )
