"""Base of the decorated tasks: their function gets a message as its first argument."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.bases.decorator import DecoratedOperator, determine_kwargs


class FirstArgumentOperator(DecoratedOperator):
    """A task around a function whose first argument is a message, which the DAG's author doesn't pass.

    The other arguments come from the call in the DAG or from the task's context.

    Attributes:
        function_argument: Name of the operator's argument that takes the function.
    """

    function_argument: ClassVar[str]

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs[self.function_argument] = python_callable
        super().__init__(
            python_callable=functools.partial(python_callable, None),
            op_args=op_args,
            op_kwargs=op_kwargs,
            **kwargs,
        )
        self.python_callable = python_callable
        self._keywords: Mapping[str, Any] = {}

    def _bind(self, context: Context) -> None:
        """Take the function's keyword arguments from the call in the DAG and from the context."""
        given = {**context, **self.op_kwargs}
        self._keywords = determine_kwargs(self.python_callable, (None, *self.op_args), given)

    def _call(self, message: object) -> object:
        """Call the function with a message."""
        return self.python_callable(message, *self.op_args, **self._keywords)
