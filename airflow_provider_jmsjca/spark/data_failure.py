"""Distinguishes jobs that failed because of their messages from jobs that failed for other reasons.

| because of the data | not because of the data |
|---|---|
| `PoisonMessageError`, which a script raises for a bad message | errors of the spool and the configuration |
| a row that Spark or a table refuses: SQLSTATE 22, 23, `raise_error` (P0001) | lost executors, memory |
| an exception in a Python or Scala function | a Python function that lacks a module, a file or memory |
| `ValueError`, `ArithmeticError` in the script itself | any other exception of the script |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_jmsjca.errors import JmsError, PoisonMessageError
from airflow_provider_jmsjca.spool.splits import DataFailure

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError

# 22: data exception; 23: a table's constraint; 39: a user's function raised; P0001: raise_error, assert_true.
_SQL_STATES = ("22", "23", "39", "P0001")
_PYTHON_ERROR = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
# Exceptions of a Python worker that don't depend on the row.
_SURROUNDINGS = frozenset(
    {
        "BrokenPipeError",
        "ChildProcessError",
        "ConnectionAbortedError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "EOFError",
        "FileNotFoundError",
        "ImportError",
        "InterruptedError",
        "KeyboardInterrupt",
        "MemoryError",
        "ModuleNotFoundError",
        "OSError",
        "PermissionError",
        "SystemExit",
        "TimeoutError",
    }
)


def data_failure(error: BaseException, stored: tuple[str, ...] = ()) -> DataFailure | None:
    """Return the data failure of a script, or `None` if it failed for another reason.

    Args:
        error: The exception that ended the script.
        stored: Tables to which the script had committed rows before it failed.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - only jobs have pyspark

    if isinstance(error, Py4JJavaError):
        said = _of_java(error)
        return said and DataFailure(exception_class=said[0], exception_message=said[1], stored=stored)
    if isinstance(error, PySparkException):
        for cause in _causes(error):
            said = _of_python(cause) if type(cause).__name__ == "PythonException" else _of_spark(cause)
            if said is not None:
                return DataFailure(exception_class=said[0], exception_message=said[1], stored=stored)
        return None
    if isinstance(error, PoisonMessageError) or (
        isinstance(error, ValueError | ArithmeticError) and not isinstance(error, JmsError)
    ):
        name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        return DataFailure(exception_class=name, exception_message=str(error), stored=stored)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception of Spark and its causes, the outermost first."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = getattr(found, "_cause", None)


def _of_spark(error: BaseException) -> tuple[str, str] | None:
    state = getattr(error, "getSqlState", lambda: None)()
    if not isinstance(state, str) or not state.startswith(_SQL_STATES):
        return None
    condition = getattr(error, "getCondition", lambda: None)()
    return f"org.apache.spark.{condition or type(error).__name__}", _first_paragraph(str(error))


def _of_java(error: Py4JJavaError) -> tuple[str, str] | None:
    """Return class and text of the outermost exception, among an error and its causes, that blames the data.

    Its SQLSTATE shows this. Such exceptions come from Delta or a JDBC driver, for example.
    """
    found = error.java_exception
    while found is not None:
        state = _call_java(found, "getSQLState") or _call_java(found, "getSqlState")
        if isinstance(state, str) and state.startswith(_SQL_STATES):
            return found.getClass().getName(), " ".join(str(found.getMessage()).split())
        found = found.getCause()
    return None


def _call_java(java: Any, method: str) -> object:
    """Call a method of a Java object; return `None` if the object has no such method."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with pyspark

    try:
        return getattr(java, method)()
    except Py4JError:
        return None


def _of_python(error: BaseException) -> tuple[str, str] | None:
    """Return class and text of an exception in a Python function: the last line of its traceback."""
    lines = str(error).partition("Traceback (most recent call last):")[2].splitlines()
    found = [match for line in lines if (match := _PYTHON_ERROR.match(line))]
    if not found or found[-1][1] in _SURROUNDINGS:
        return None
    return found[-1][1], found[-1][2] or ""


def _first_paragraph(text: str) -> str:
    return text.partition("\n\nJVM stacktrace")[0].partition("\n\n")[0].strip()
