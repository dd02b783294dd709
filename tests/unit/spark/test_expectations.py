"""Expectations of the command line."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.expectations import parsed_expectations


def test_an_expectation_of_the_command_line_has_a_name_and_a_condition() -> None:
    assert parsed_expectations("--expect", ["positive: amount > 0", "a:b:c"]) == {
        "positive": "amount > 0",
        "a": "b:c",
    }
    for given in (["amount > 0"], ["positive:"], [": amount > 0"], ["a: x", "a: y"]):
        with pytest.raises(ConfigurationError, match="--expect "):
            parsed_expectations("--expect", given)
