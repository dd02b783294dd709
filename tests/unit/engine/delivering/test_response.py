"""What answers say: I45, I46."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.delivering.delivery import Response, Result, read_response


@pytest.mark.parametrize(
    ("result", "body", "response"),
    [
        ("SUCCESS", "ignored", Response(result=Result.SUCCESS)),
        (" success ", "", Response(result=Result.SUCCESS)),
        ("VALCHANGE", "<order/>", Response(result=Result.VALCHANGE, has_values=True)),
        ("VALCHANGE", "", Response(result=Result.VALCHANGE)),
        ("MULTIPLE_HITS", "<order/>", Response(result=Result.MULTIPLE_HITS, has_values=True)),
        ("FAIL", " no stock \n", Response(result=Result.FAIL, error="no stock")),
        ("FAIL", "", Response(result=Result.FAIL, error="the request failed: FAIL")),
        (
            "FAIL_RETRIEVE_BY_CONTENT",
            "none",
            Response(result=Result.FAIL_RETRIEVE_BY_CONTENT, error="none"),
        ),
        ("BO_DOES_NOT_EXIST", "gone", Response(result=Result.BO_DOES_NOT_EXIST, error="gone")),
        ("UNABLE_TO_LOGIN", "who?", Response(result=Result.UNABLE_TO_LOGIN, error="who?")),
        ("VALDUPES", "twice", Response(result=Result.VALDUPES, error="twice")),
        ("APPRESPONSETIMEOUT", "down", Response(result=Result.APPRESPONSETIMEOUT, error="down")),
        ("maybe", "x", Response(result=None, error="the answer's result 'maybe' is not known")),
        (1, "x", Response(result=None, error="the answer's result '1' is not known")),
        (None, "x", Response(result=None, error="the answer has no result in its property 'result'")),
    ],
)
def test_results_i46(result: str | int | None, body: str, response: Response) -> None:
    found = read_response(JmsMessage.text(body, {"result": result}), "result")
    assert found == response
    assert found.failed is (response.error is not None)
    assert found.fatal is (result == "APPRESPONSETIMEOUT")


def test_without_the_property_the_request_failed_i46() -> None:
    assert read_response(JmsMessage.text("x"), "result").failed


def test_other_bodies_i46() -> None:
    assert read_response(JmsMessage.bytes(b"caf\xc3\xa9", {"r": "FAIL"}), "r").error == "café"
    assert read_response(JmsMessage.bytes(b"\xff", {"r": "FAIL"}), "r").error == "\ufffd"
    assert read_response(JmsMessage.empty({"r": "FAIL"}), "r").error == "the request failed: FAIL"
    assert read_response(JmsMessage.map({"a": 1}, {"r": "FAIL"}), "r").error == "the request failed: FAIL"
    assert read_response(JmsMessage.map({"a": 1}, {"r": "VALCHANGE"}), "r").has_values


@pytest.mark.parametrize("body", ["no" * 1_000_000, b"no" * 1_000_000, "\u00e4" * 5_000])
def test_the_error_is_the_beginning_of_a_long_body(body: str | bytes) -> None:
    make = JmsMessage.text if isinstance(body, str) else JmsMessage.bytes
    error = read_response(make(body, {"Result": "FAIL"}), "Result").error  # type: ignore[operator]
    assert error is not None
    assert len(error) == 4_001
    assert error.endswith("…")
