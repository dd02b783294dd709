"""Expectations: conditions that rows should satisfy, and the actions for rows that don't."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.rejects import EXCEPTION_CLASS
from airflow_provider_jmsjca.spark.tables.columns import ORIGIN, check_origin, quoted_text, shown, without

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FAILED: Final = "_jms_failed"
_SHOWN_VALUES: Final = 100


class OnViolation(StrEnum):
    """The action for a row that violates an expectation."""

    REJECT = "reject"
    """The message of the row is rejected, with all of its rows."""
    DROP = "drop"
    """The row is left out; its message is not rejected."""
    FAIL = "fail"
    """The job fails, and nothing is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Rows after their expectations were tested.

    Attributes:
        rows: The rows to keep. With `reject`, rows of rejected messages are left out too.
        failed: Number of rows that violate each expectation, by its name.
        rejects: Messages to reject, for `Batch.reject`; `None` if there are none.
    """

    rows: DataFrame
    failed: Mapping[str, int]
    rejects: DataFrame | None


def parsed_expectations(argument: str, given: Sequence[str]) -> dict[str, str]:
    """Return conditions by name.

    Args:
        argument: Name of the command-line argument, for the error.
        given: Texts of the form `name: condition`, such as `positive: amount > 0`.

    Raises:
        ConfigurationError: A text has no name or no condition, or two have the same name.
    """
    found: dict[str, str] = {}
    for text in given:
        name, sign, condition = (part.strip() for part in text.partition(":"))
        if not (name and sign and condition):
            raise ConfigurationError(
                f"{argument} {text!r}: expected NAME: CONDITION, as in positive: amount > 0"
            )
        if name in found:
            raise ConfigurationError(f"{argument} {text!r}: there are two expectations of this name")
        found[name] = condition
    return found


def check_expectations(rows: DataFrame, conditions: Mapping[str, str], action: OnViolation) -> Checked:
    """Test each row in one pass over the rows; a second pass follows if a message is rejected.

    Args:
        rows: The rows; to reject messages they need the column `_jms`.
        conditions: Conditions in SQL, by name. A row violates a condition that is false or NULL for it.
        action: The action for a row that violates a condition.

    Raises:
        ConfigurationError: A condition can't be evaluated; or a row violates one, and the action is `fail`.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - only jobs have pyspark
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    if action is OnViolation.REJECT:
        if ORIGIN not in rows.columns:
            raise ConfigurationError(f"expect: the rows have no column {ORIGIN}, which tells their message")
        check_origin("expect", rows)
    if not conditions:
        return Checked(rows=rows, failed={}, rejects=None)
    violated = {name: f"NOT coalesce({condition}, false)" for name, condition in conditions.items()}
    counts = [
        sql.expr(f"count_if({test})").alias(f"c{place}") for place, test in enumerate(violated.values())
    ]
    try:
        found = rows.agg(*counts).first()
    except AnalysisException as error:
        raise ConfigurationError(f"expect: a condition can't be evaluated: {error}") from error
    failed = dict(zip(conditions, found or (), strict=True))
    if not any(failed.values()):
        return Checked(rows=rows, failed=failed, rejects=None)
    if action is OnViolation.FAIL:
        said = "; ".join(
            f"{count} rows violate '{name}': {conditions[name]}" for name, count in failed.items() if count
        )
        raise ConfigurationError(f"expect: {said}. Nothing was written")
    if action is OnViolation.DROP:
        return Checked(
            rows=rows.where(f"NOT ({' OR '.join(violated.values())})"), failed=failed, rejects=None
        )
    values = shown("to_json(struct(* EXCEPT (_jms)), map('ignoreNullFields', 'false'))", _SHOWN_VALUES)
    reasons = (
        f"CASE WHEN {test} THEN {quoted_text(f'expectation {name!r} is violated: {conditions[name]}')} END"
        for name, test in violated.items()
    )
    rejects = (
        rows.selectExpr(
            ORIGIN, f"coalesce({', '.join(reasons)}) AS {_FAILED}", f"{values} AS exception_message"
        )
        .where(f"{_FAILED} IS NOT NULL")
        .selectExpr(
            ORIGIN,
            f"'{EXCEPTION_CLASS}' AS exception_class",
            f"concat({_FAILED}, ', found the values ', exception_message) AS exception_message",
        )
    )
    return Checked(rows=without(rows, rejects), failed=failed, rejects=rejects)
