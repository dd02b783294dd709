"""An exception as a value, so that it can be stored, compared and sent."""

from __future__ import annotations

import traceback
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception, or a reason without an exception.

    Attributes:
        class_names: The exception's class first, then its bases, dotted (`builtins.ValueError`); empty if
            there is a reason but no exception.
        message: The exception's text.
        stack_trace: The formatted traceback, causes included; may be empty.

    Source: J162-J164.
    """

    class_names: tuple[str, ...]
    message: str = ""
    stack_trace: str = ""

    @classmethod
    def of(cls, error: BaseException, *, with_trace: bool = True) -> Failure:
        """Return an exception as a value.

        Args:
            error: The exception.
            with_trace: Whether to format the traceback too, which takes most of the time.
        """
        return cls(
            class_names=tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__[:-1]),
            message=_text(error),
            stack_trace="".join(traceback.format_exception(error)) if with_trace else "",
        )

    @property
    def class_name(self) -> str:
        """The dotted name of the exception's own class; the name of a built-in class has no module."""
        return self.class_names[0].removeprefix("builtins.") if self.class_names else ""


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001 - the exception is somebody else's, and so is what this raises
        return f"<its text can't be had: str() raised {type(fault).__name__}>"


def loggable(error: BaseException) -> BaseException:
    """Return the exception for logging, or a replacement if `str()` of it or of a cause fails.

    Logging calls `str()` on the exception and its causes. If one call fails, the whole log line is lost. The
    replacement has the exception's class name and traceback.
    """
    chain: list[object] = [error]
    seen = set()
    while chain:
        each = chain.pop()
        if id(each) in seen or not isinstance(each, BaseException):
            continue
        seen.add(id(each))
        try:
            str(each)
        except Exception:  # noqa: BLE001 - as in `_text`
            return RuntimeError(f"{type(error).__name__}: {_text(error)}").with_traceback(error.__traceback__)
        chain += (each.__cause__, each.__context__, *getattr(each, "exceptions", ()))
    return error
