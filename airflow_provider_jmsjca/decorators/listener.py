"""`@task.jms_listener`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow.sdk import Context
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_jmsjca.core.activation import ActivationSpec, refuse_secrets
from airflow_provider_jmsjca.core.options import option_by_field
from airflow_provider_jmsjca.decorators.first_argument import FirstArgumentOperator
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.secrets import refuse_secrets_in_spec
from airflow_provider_jmsjca.operators.listen import JmsListenOperator
from airflow_provider_jmsjca.operators.run_state import RunState

# `jms_conn_id` is also an argument of the operator, so it doesn't count as a field of the spec here.
_SPEC_FIELDS = frozenset(ActivationSpec.model_fields) - {"jms_conn_id"}


class JmsListenDecoratedOperator(FirstArgumentOperator, JmsListenOperator):
    """A listener around a decorated function; see `jms_listener_task`."""

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *JmsListenOperator.template_fields)
    custom_operator_name = "@task.jms_listener"

    function_argument = "on_message"

    def _given_spec(self) -> ActivationSpec:
        destination = self.op_kwargs.get("destination")
        if destination is None or isinstance(self.spec, ActivationSpec) or _names_destination(self.spec):
            return super()._given_spec()
        refuse_secrets(type(self).__name__, {"destination": destination})
        return ActivationSpec(**{**self.spec, "destination": destination})

    def _listen(self, context: Context, run_state: RunState) -> dict[str, Any]:
        self._bind(context)
        return super()._listen(context, run_state)

    def _handle(self, delivery: Any) -> object:
        return self._call(delivery)


def _names_destination(spec: Mapping[str, Any]) -> bool:
    return any((option := option_by_field(name)) and option.name == "destination" for name in spec)


def jms_listener_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Create a task from a function that handles messages.

    The function's first argument is the `Delivery`; the others come from the call in the DAG or from the
    task's context. Its result is ignored: the task returns the counts::

        @task.jms_listener(destination="queue://orders", redelivery_handling="3:move(queue:dlq)", idle_for=60)
        def book(delivery):
            delivery.send("queue://booked", JmsMessage.text(delivery.body))

    If the decorator has no destination, the function's argument `destination` is used. So one task can be
    mapped over several queues::

        @task.jms_listener(idle_for=60)
        def book(delivery, destination): ...

        book.expand(destination=["queue://orders", "queue://returns"])

    Args:
        python_callable: The function.
        **kwargs: Fields of an activation spec, and arguments of `JmsListenOperator`.

    Raises:
        ConfigurationError: Both a `spec` and single fields of a spec are given. Or a field holds a secret,
            which belongs in an Airflow connection.
    """
    spec = {name: kwargs.pop(name) for name in _SPEC_FIELDS & kwargs.keys()}
    if spec and "spec" in kwargs:
        raise ConfigurationError(
            f"@task.jms_listener: got spec together with {', '.join(sorted(spec))}; put these into the "
            "spec, or leave the spec out"
        )
    kwargs.setdefault("spec", spec)
    refuse_secrets_in_spec("@task.jms_listener", kwargs.get("spec"))
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=False,
        decorated_operator_class=JmsListenDecoratedOperator,
        **kwargs,
    )
