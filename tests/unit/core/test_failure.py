"""Exceptions as values."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca.core.failure import Failure, loggable
from airflow_provider_jmsjca.errors import AuthenticationError


def raised(error: Exception) -> Failure:
    try:
        raise error  # noqa: TRY301 - the traceback is what is tested
    except Exception as caught:  # noqa: BLE001 - whatever the test raised
        return Failure.of(caught)


def test_class_message_and_trace() -> None:
    failure = raised(AuthenticationError("who are you"))
    assert failure.class_name == "airflow_provider_jmsjca.errors.AuthenticationError"
    assert failure.message == "who are you"
    assert "raise error" in failure.stack_trace
    assert "airflow_provider_jmsjca.errors.PermanentBrokerError" in failure.class_names
    assert "airflow_provider_jmsjca.errors.TransientBrokerError" not in failure.class_names


def test_built_in_classes_need_no_module() -> None:
    failure = raised(KeyError("k"))
    assert failure.class_name == "KeyError"
    assert failure.class_names[:2] == ("builtins.KeyError", "builtins.LookupError")


class Nameless(Exception):  # noqa: N818 - a user's
    def __str__(self) -> str:
        raise KeyError("number")


def with_cause(error: Exception, cause: BaseException) -> Exception:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def test_what_has_a_text_is_logged_as_it_is() -> None:
    error = with_cause(ValueError("no stock"), KeyError("k"))
    error.__context__ = error  # a circle is no trouble
    assert loggable(error) is error


@pytest.mark.parametrize("of", ["cause", "group"])
def test_of_one_without_a_text_the_traceback_is_logged(of: str) -> None:
    made = (
        with_cause(ValueError("no stock"), Nameless())
        if of == "cause"
        else ExceptionGroup("all", [Nameless()])
    )
    shown = loggable(made)
    assert shown is not made
    assert str(shown) == f"{type(made).__name__}: {made}"
    assert shown.__traceback__ is made.__traceback__
    assert (shown.__cause__, shown.__context__) == (None, None)
