"""Exceptions as values."""

from __future__ import annotations

from airflow_provider_jmsjca.core.failure import Failure
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
    assert failure.is_any({"airflow_provider_jmsjca.errors.PermanentBrokerError"})
    assert not failure.is_any({"airflow_provider_jmsjca.errors.TransientBrokerError"})


def test_built_in_classes_need_no_module() -> None:
    failure = raised(KeyError("k"))
    assert failure.class_name == "KeyError"
    assert failure.is_any({"LookupError"})
    assert failure.is_any({"builtins.LookupError"})
    assert not failure.is_any({"Lookup"})
