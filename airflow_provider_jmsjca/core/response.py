"""What an answer says of the request it answers, by the rules of the WBIA adapter.

Source: I45, I46.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from airflow_provider_jmsjca.core.message import JmsMessage


class Result(enum.StrEnum):
    """The results there are. Source: I46."""

    SUCCESS = "SUCCESS"
    VALCHANGE = "VALCHANGE"
    MULTIPLE_HITS = "MULTIPLE_HITS"
    FAIL = "FAIL"
    FAIL_RETRIEVE_BY_CONTENT = "FAIL_RETRIEVE_BY_CONTENT"
    BO_DOES_NOT_EXIST = "BO_DOES_NOT_EXIST"
    UNABLE_TO_LOGIN = "UNABLE_TO_LOGIN"
    VALDUPES = "VALDUPES"
    APPRESPONSETIMEOUT = "APPRESPONSETIMEOUT"


_CHANGING = {Result.VALCHANGE, Result.MULTIPLE_HITS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The outcome of a request.

    Attributes:
        result: As the answer says it; `None` if it says none, or one that isn't known.
        error: Why the request failed: the body of the answer, or words of ours if that is empty; `None` if it
            succeeded.
        has_values: Whether the body holds values that take the place of those sent.
    """

    result: Result | None
    error: str | None = None
    has_values: bool = False

    @property
    def failed(self) -> bool:
        """Whether the request failed; it does without a result that is known."""
        return self.error is not None

    @property
    def fatal(self) -> bool:
        """Whether whoever answers can't be reached: the adapter ends itself then."""
        return self.result is Result.APPRESPONSETIMEOUT


def read_response(message: JmsMessage, result_property: str) -> Response:
    """Return what an answer says.

    Args:
        message: The answer.
        result_property: Name of the message property that holds the result.

    Source: I45, I46.
    """
    given = message.properties.get(result_property)
    if given is None:
        return Response(result=None, error=f"the answer has no result in its property {result_property!r}")
    try:
        result = Result(str(given).strip().upper())
    except ValueError:
        return Response(result=None, error=f"the answer's result {str(given)!r} is not known")
    if result is Result.SUCCESS:
        return Response(result=result)
    if result in _CHANGING:
        return Response(result=result, has_values=bool(message.body))
    text = _text(message.body)
    return Response(result=result, error=text or f"the request failed: {result}")


def _text(body: object) -> str:
    if isinstance(body, bytes):
        return body.decode("utf-8", "replace").strip()
    return body.strip() if isinstance(body, str) else ""
