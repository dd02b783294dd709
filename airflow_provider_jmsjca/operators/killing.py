"""Stops a listener whose task is killed, before Airflow ends its process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from airflow_provider_jmsjca.engine.every_member import EveryMemberActivation
from airflow_provider_jmsjca.engine.listener import Activation
from airflow_provider_jmsjca.engine.load_balancing import LoadBalancedActivation

AnyActivation: TypeAlias = Activation | EveryMemberActivation | LoadBalancedActivation

# Airflow ends a task's process 5 seconds after it told it to stop; the connection is to be closed by then.
_WITHIN = timedelta(seconds=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhenKilled:
    """The `stop` of a run: set once its task is killed.

    The run itself asks for a stop that gives running calls all of `within`. The shorter time holds, so this
    asks too, in the thread of the run.

    Attributes:
        killed: Whether the task is told to end.
        activation: What runs.
        within: How long running calls may take at the end of a run.
    """

    killed: Callable[[], bool]
    activation: AnyActivation
    within: timedelta

    def is_set(self) -> bool:
        """Whether it is time; asks for the stop if so."""
        if not self.killed():
            return False
        within = min(self.within, _WITHIN)
        match self.activation:
            case LoadBalancedActivation(queue_side=queue_side, topic_side=topic_side):
                queue_side.request_stop(within, delete_durable=False)
                topic_side.request_stop(within, delete_durable=False)
            case activation:
                activation.request_stop(within, delete_durable=False)
        return True
