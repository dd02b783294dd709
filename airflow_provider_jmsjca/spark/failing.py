"""Expressions that may fail for a row: their value without an error, and the reason of the failure.

Spark has functions such as `try_cast` for single operations only. `TryEval`, the expression behind them,
accepts any expression, but discards the error. So the reason is found by trying the parts of an expression:
the innermost part that fails is the cause. The reason names this part and the values of its operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_jmsjca.spark.tables.columns import CONTROL, SHOWN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Spark may skip every operand of these except for the first.
_CONDITIONAL: Final = frozenset({"And", "Or", "If", "CaseWhen", "Coalesce", "NaNvl"})
# These can't be evaluated alone.
_BOUND: Final = frozenset({"LambdaFunction", "NamedLambdaVariable", "UnresolvedNamedLambdaVariable"})
_LEAVES: Final = frozenset({"Literal", "AttributeReference"})
# Parts at deeper levels are not examined.
_DEEPEST: Final = 20


@dataclass(frozen=True, slots=True)
class Attempt:
    """An expression over the rows of a DataFrame, in the driver's JVM.

    Attributes:
        df: The rows.
        column: The expression.
    """

    df: DataFrame
    column: Column

    def tried(self) -> Column:
        """Return a struct with the value, or NULL for a row for which the expression raises an error."""
        from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

        inner: Any = sql.struct(self.column.alias("value"))
        jvm = self._jvm.org.apache.spark.sql
        failing = jvm.catalyst.expressions.TryEval(jvm.classic.ExpressionUtils.expression(inner._jc))  # noqa: SLF001
        return self._column(failing)

    def reason(self) -> Column:
        """Return a text that names the part that fails and the values of its operands.

        The text is only correct for rows for which `tried` is NULL. If several branches of a `CASE` or a
        similar expression would fail, the text names the `CASE`, because Spark evaluates only one of them.
        """
        analyzed = self.df.select(self.column)._jdf.queryExecution().analyzed()  # noqa: SLF001
        part = analyzed.expressions().apply(0)
        while _kind(part) == "Alias":
            part = part.child()
        return self._reason(part, _DEEPEST)

    def _reason(self, part: Any, depth: int) -> Column:
        from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

        operands = _operands(part)
        found = self._own_reason(part, operands)
        looked_into = [each for each in operands if _kind(each) not in _LEAVES] if depth else []
        fails = [self._part(each).tried().isNull() for each in looked_into]
        for number, operand in reversed(list(enumerate(looked_into))):
            is_cause = fails[number]
            if _kind(part) in _CONDITIONAL and operand is not operands[0]:
                for other in (*fails[:number], *fails[number + 1 :]):
                    is_cause &= ~other
            found = sql.when(is_cause, self._reason(operand, depth - 1)).otherwise(found)
        return found

    def _own_reason(self, part: Any, operands: list[Any]) -> Column:
        from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

        values = [self._shown(operand) for operand in operands]
        if _kind(part) == "Cast" and operands[0].dataType().typeName() == "string":
            beginning = sql.lit(f'the value is no {part.dataType().sql()}, found the string "')
            return sql.concat(beginning, values[0], sql.lit('"'))
        failed = sql.lit(f"{part.prettyName()} failed, found the values ")
        return (
            sql.concat(failed, sql.concat_ws(", ", *values))
            if values
            else sql.lit(f"{part.prettyName()} failed")
        )

    def _shown(self, part: Any) -> Column:
        """Return the beginning of a part's value on one line."""
        from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

        if part.dataType().typeName() == "binary":
            return sql.lit("bytes")
        text = self._part(part, cast="string").tried()["value"]
        beginning = sql.regexp_replace(sql.left(text, sql.lit(SHOWN)), CONTROL, " ")
        more = sql.when(sql.length(text) > SHOWN, "…").otherwise("")
        return sql.coalesce(sql.concat(beginning, more), sql.lit("NULL"))

    def _part(self, part: Any, cast: str | None = None) -> Attempt:
        column = self._column(part)
        return Attempt(self.df, column if cast is None else column.cast(cast))

    def _column(self, expression: Any) -> Column:
        from pyspark.sql import Column  # noqa: PLC0415 - only jobs have pyspark

        return Column(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))

    @property
    def _jvm(self) -> Any:
        return self.df.sparkSession.sparkContext._jvm  # noqa: SLF001 - Python has no function for it


def _kind(part: Any) -> str:
    return str(part.getClass().getSimpleName())


def _operands(part: Any) -> list[Any]:
    children = part.children()
    every = [children.apply(number) for number in range(children.size())]
    return [each for each in every if _kind(each) not in _BOUND]
