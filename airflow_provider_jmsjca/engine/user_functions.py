"""Functions of users, which are called and not awaited."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_jmsjca.errors import ConfigurationError

_F = TypeVar("_F", bound=Callable[..., object])
_KINDS = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)


def plain_function(what: str, function: _F) -> _F:
    """Return a function that does its work when it is called.

    Args:
        what: Whose it is, for the error.
        function: What a user gave.

    Raises:
        ConfigurationError: A call of it would only make a coroutine or a generator, which nobody runs.
    """
    for each in (function, getattr(function, "__call__", None)):  # noqa: B004 - of an object it is a method
        if any(is_kind(each) for is_kind in _KINDS):
            raise ConfigurationError(
                f"{what} is asynchronous or a generator, expected a plain function: a call does nothing; "
                "asyncio.run(...) in a plain function runs a coroutine"
            )
    return function


def refuse_unrun(what: str, result: object) -> None:
    """Refuse what a function returned, if that is its work still to be done.

    Raises:
        ConfigurationError: It is a coroutine or a generator.
    """
    if not (inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    raise ConfigurationError(
        f"{what} returned a {type(result).__name__}, which nobody runs: nothing was done"
    )
