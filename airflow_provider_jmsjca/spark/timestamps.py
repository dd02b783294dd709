"""Expressions in SQL that recognise dates and timestamps in bodies, and return their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.tables.columns import quoted_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END: Final = "(?s:(?!.))"  # `$` would also match before a last line feed
_DATE: Final = "(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = "T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
_ZONE: Final = "(Z|[+-][0-9]{2}:[0-9]{2})?"
_ZONED: Final = "(Z|[+-][0-9]{2}:[0-9]{2})$"
WRITTEN: Final = {"date": _DATE, "timestamp": _DATE + _TIME + _ZONE, "timestamp_ntz": _DATE + _TIME}
"""The forms of values of types that JSON lacks, as regular expressions."""
USUAL: Final = "usual"
"""Name of the group of forms that Java, .NET, Jackson and Python write."""
# The usual forms differ in this way: Java may leave out the seconds and may add the zone's name to the
# offset, .NET writes seven digits after the seconds, Jackson no colon in the offset, Python a blank before
# the time.
_USUAL_TIME: Final = "[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?"
_USUAL_ZONE: Final = "(Z|[+-][0-9]{2}(:?[0-9]{2})?)"
_USUAL_REGION: Final = r"\[[A-Za-z0-9_/+-]{1,40}\]"
# Number of microseconds in the unit, by the name of the form.
_EPOCHS: Final = {"epoch_seconds": 1_000_000, "epoch_millis": 1_000, "epoch_micros": 1}
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # the years 1 to 9999, since the epoch
_LONGEST: Final = 100
_QUOTED_LETTERS: Final = re.compile("'[^']*'")
_ZONE_LETTERS: Final = re.compile("[VzOXx]")


@dataclass(frozen=True, slots=True)
class TimestampForms:
    """Further forms in which a `TIMESTAMP` may be written, besides the ISO 8601 form in `WRITTEN`.

    The form in `WRITTEN` is tried first, then the others in their order. The first that fits is used.

    Attributes:
        names: Names of forms: `usual`, `epoch_seconds`, `epoch_millis`, `epoch_micros`, or Spark's patterns
            for dates.
    """

    names: Sequence[str] = ()

    def check(self, spark: SparkSession) -> None:
        """Refuse patterns that Spark doesn't support.

        Raises:
            ConfigurationError: Spark doesn't support a pattern, or the pattern has no year.
        """
        from pyspark.errors import PySparkException  # noqa: PLC0415 - only jobs have pyspark

        for name in self.names:
            if name == USUAL or name in _EPOCHS:
                continue
            pattern = quoted_text(name)
            now = f"date_format(TIMESTAMP '2026-01-02 03:04:05', {pattern})"
            try:
                ((found,),) = spark.range(1).selectExpr(f"try_to_timestamp({now}, {pattern})").collect()
            except PySparkException as error:
                (said, *_) = str(error).strip().splitlines()
                raise ConfigurationError(f"timestamp format {name!r}: {said}") from error
            if found is None or not re.search("[yu]", name):
                raise ConfigurationError(
                    f"timestamp format {name!r}: expected {USUAL}, {', '.join(_EPOCHS)}, or a pattern with "
                    "the year such as dd.MM.yyyy HH:mm:ss"
                )

    def fits(self, text: str) -> str:
        """Return an expression that tells whether a text is a timestamp."""
        return f"({' OR '.join(each for each, _ in self._cases(text))})"

    def value(self, text: str) -> str:
        """Return an expression for the timestamp that a text represents; NULL if it represents none."""
        if not self.names:
            return f"try_cast({text} AS timestamp)"
        return f"CASE {' '.join(f'WHEN {fits} THEN {value}' for fits, value in self._cases(text))} END"

    def _cases(self, text: str) -> list[tuple[str, str]]:
        value = f"try_cast({text} AS timestamp)"
        zoned = f"{text} RLIKE {quoted_text(_ZONED)}"
        is_one = f"CASE WHEN {zoned} THEN {value} IS NOT NULL ELSE {_is_local(text)} END"
        own = f"octet_length({text}) < 40 AND {_matches(text, WRITTEN['timestamp'])} AND {is_one}"
        return [(f"({own})", value), *(self._case(name, text) for name in self.names)]

    def _case(self, name: str, text: str) -> tuple[str, str]:
        if name in _EPOCHS:
            factor, number = _EPOCHS[name], f"try_cast({text} AS BIGINT)"
            last = (_LAST_SECOND + 1) * 1_000_000 // factor - 1
            within = f"{number} BETWEEN {_FIRST_SECOND * 1_000_000 // factor} AND {last}"
            fits = f"({_matches(text, '-?(0|[1-9][0-9]{0,17})')} AND coalesce({within}, false))"
            return fits, f"timestamp_micros({number} * {factor})"
        if name == USUAL:
            return _usual(text)
        value = f"try_to_timestamp({text}, {quoted_text(name)})"
        fits = f"{value} IS NOT NULL"
        if not _ZONE_LETTERS.search(_QUOTED_LETTERS.sub("", name)):
            # `to_timestamp_ntz` raises an error for a text that doesn't fit, so `fits` is tested first.
            local = f"to_timestamp_ntz({text}, {quoted_text(name)})"
            fits = f"CASE WHEN {fits} THEN CAST({value} AS timestamp_ntz) = {local} ELSE false END"
        return f"(octet_length({text}) < {_LONGEST} AND {fits})", value


def is_written(name: str, text: str, forms: TimestampForms) -> str:
    """Return an expression that tells whether a text is a value of a type.

    Args:
        name: Name of the type, a key of `WRITTEN`.
        text: An expression for the text.
        forms: Further forms of a `TIMESTAMP`.
    """
    if name == "timestamp":
        return forms.fits(text)
    return (
        f"(octet_length({text}) < 40 AND {_matches(text, WRITTEN[name])} "
        f"AND try_cast({text} AS {name}) IS NOT NULL)"
    )


def _usual(text: str) -> tuple[str, str]:
    form = f"{_DATE}{_USUAL_TIME}({_USUAL_ZONE}({_USUAL_REGION})?)?"
    # Spark reads these forms once the region is removed, and missing seconds and offset minutes are added.
    plain = f"regexp_replace({text}, {quoted_text(_USUAL_REGION)}, '')"
    timed = f"regexp_replace({plain}, '^(.{{10}}).(.{{5}})(?!:)', '$1T$2:00')"
    zoned = f"regexp_replace({timed}, '(:[0-9.]+[+-][0-9]{{2}})$', '$1:00')"
    value = f"try_cast({zoned} AS timestamp)"
    has_zone = quoted_text(f"{_USUAL_ZONE}({_USUAL_REGION})?{END}")
    is_one = (
        f"CASE WHEN substr({text}, 17) RLIKE {has_zone} THEN {value} IS NOT NULL ELSE {_is_local(zoned)} END"
    )
    return f"(octet_length({text}) < {_LONGEST} AND {_matches(text, form)} AND {is_one})", value


def _is_local(text: str) -> str:
    # Refuses local times that don't exist, when clocks are put forward: Spark would read them as later times.
    same = f"CAST(try_cast({text} AS timestamp) AS timestamp_ntz) = try_cast({text} AS timestamp_ntz)"
    return f"coalesce({same}, false)"


def _matches(text: str, form: str) -> str:
    return f"{text} RLIKE {quoted_text(f'^{form}{END}')}"
