"""The SQL expression for the reason to reject a message: what its body has that doesn't fit the schema."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, TypedDict

from airflow_provider_jmsjca.spark.bodies.formats import BodyFormat
from airflow_provider_jmsjca.spark.expressions.values import (
    PARSED,
    TEXT,
    UNDECODABLE_COLUMN,
    UNPARSED,
    UNREADABLE,
    VAST,
    WHOLE,
    body_kinds,
    fits_type,
    from_variant,
    has_one_value,
    is_absent,
    is_object,
    lambda_variable,
    member_of,
    undecodable_reason,
    variant_kind,
)
from airflow_provider_jmsjca.spark.tables.columns import quoted_name, quoted_text, shown, type_name
from airflow_provider_jmsjca.spark.timestamps import END, TimestampForms

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_OPENS: Final = "^[ \t\r\n]*+[\\[{]"
_BLANK: Final = f"^[ \t\r\n]*+{END}"
# Limits of Spark's JSON reader, by the option of from_json that lifts them.
_LIMITS: Final = {
    "maxNumLen": "a number of more than 1,000 digits",
    "maxNestingDepth": "more than 999 levels of objects and arrays",
}
# Extensions of JSON that other languages write, by the option of from_json that reads them.
_NOT_OF_JSON: Final = {
    "allowNonNumericNumbers": "NaN or Infinity as a number",
    "allowSingleQuotes": "single quotes in place of double ones",
    "allowUnquotedFieldNames": "a name without quotes",
    "allowComments": "a comment",
    "allowNumericLeadingZeros": "a number that begins with 0",
    "allowUnquotedControlChars": "an unescaped control character in a string",
    "allowBackslashEscapingAnyCharacter": "an escape that JSON doesn't define",
}
_BYTE_ORDER_MARK: Final = "\ufeff"
_TRAILING_COMMA: Final = ",([ \t\r\n]*[}\\]])"
_LONG: Final = "a string of more than 20,000,000 characters"
_EMPTY: Final = "the body is empty"
_TWICE: Final = "the body has an object with a name twice"
_HALF: Final = "the body has an escape such as \\ud800, which is half a character"
_MORE: Final = "the body has more than one JSON value"
_CUT: Final = (
    "the body is not JSON: it begins with { or [ and ends with neither } nor ], so it may be cut off"
)
_NOT_JSON: Final = "the body is not JSON"
# JSON escapes of half a surrogate pair without the other half.
_HALVES: Final = (
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_INFINITE: Final = '"-?Infinity"'
_NO_FAULT: Final = "CAST(NULL AS STRUCT<reason: STRING, value: VARIANT>)"


def rejection_reason(fields: StructType, body_format: BodyFormat | None, forms: TimestampForms) -> str:
    """Return an expression for the reason to reject a message; NULL for a message that fits the schema."""
    kinds = body_kinds(body_format)
    expected = f"expected {'a JSON' if body_format is None else body_format.with_article} body, found kind "
    unread = f"WHEN {UNREADABLE} IS NOT NULL THEN {UNREADABLE}" if body_format is not None else ""
    whole = f"try_variant_get({WHOLE}, '$[0]', 'variant')"
    fault = _bound(whole, "_jms_1", _fault(forms, fields, "_jms_1", "''"))
    other = f"concat('expected a JSON object', {_found('_jms_other')})"
    misfit = f"concat(_jms_fault.reason, {_found('_jms_fault.value')})"
    return f"""CASE
        WHEN {UNDECODABLE_COLUMN} IS NOT NULL THEN {undecodable_reason()}
        WHEN body_type NOT IN ({kinds}) THEN concat('{expected}', body_type)
        {unread}
        WHEN {TEXT} IS NULL OR {TEXT} RLIKE {quoted_text(_BLANK)} THEN {quoted_text(_EMPTY)}
        WHEN NOT is_valid_utf8({TEXT}) THEN 'expected a JSON body, found bytes that are not UTF-8'
        WHEN {WHOLE} IS NULL THEN {_why_unreadable()}
        WHEN NOT ({has_one_value()}) OR {whole} IS NULL THEN {quoted_text(_MORE)}
        WHEN NOT ({is_object()}) THEN {_bound(whole, "_jms_other", other)}
        ELSE coalesce(
            {_bound(fault, "_jms_fault", misfit)},
            CASE WHEN {PARSED}.{UNPARSED} IS NOT NULL
                THEN {quoted_text(f"the body doesn't fit {type_name(fields)}")} END)
        END"""


def _found(value: str) -> str:
    """Return an expression that briefly describes a VARIANT; an empty text for NULL."""
    text = from_variant(value, "STRING")
    # Spark shows the decimal 1.0 as 1, so the description mentions the decimal point.
    pointed = (
        f"CASE WHEN {variant_kind(value)} LIKE 'DECIMAL%' AND try_cast({text} AS BIGINT) IS NOT NULL "
        f"AND {text} NOT LIKE '%.%' THEN ' with a decimal point' ELSE '' END"
    )
    return f"""CASE {variant_kind(value)}
        WHEN 'STRING' THEN concat(', found the string "', {shown(text)}, '"')
        WHEN 'BOOLEAN' THEN concat(', found ', {text})
        WHEN 'VOID' THEN ', found null'
        WHEN 'DOUBLE' THEN CASE WHEN {text} LIKE '%Infinity' THEN ', found a number beyond DOUBLE'
            ELSE concat(', found the number ', {text}) END
        ELSE CASE
            WHEN {value} IS NULL THEN ''
            WHEN {variant_kind(value)} LIKE 'OBJECT<%' THEN ', found an object'
            WHEN {variant_kind(value)} LIKE 'ARRAY<%' THEN ', found an array'
            ELSE concat(', found the number ', {shown(text)}, {pointed}) END
        END"""


def _why_unreadable() -> str:
    """Return an expression for the reason that a body isn't one JSON value, or is beyond a limit."""
    text = TEXT
    named = _named(text)
    # `as_fields` makes from_json copy the string: only then does Spark check the string's length.
    long = f"octet_length({text}) > 20000000 AND NOT ({_reads(named, as_fields='_: STRING, ')})"
    limits = [
        *((_reads(named, option), limit) for option, limit in _LIMITS.items()),
        (_reads(named, *_LIMITS), " and ".join(_LIMITS.values())),
    ]

    def beyond(limit: str) -> str:
        return quoted_text(f"the body has {limit}: Spark cannot read it")

    opens = f"{text} RLIKE {quoted_text(_OPENS)}"
    certain = [
        (f"{_reads(named)} AND {long}", beyond(_LONG)),
        (f"{_is_one_value(text)} AND {text} RLIKE {quoted_text(_HALVES)}", quoted_text(_HALF)),
        (_is_one_value(text), quoted_text(_TWICE)),
        *((f"NOT ({_reads(named)}) AND {case}", beyond(limit)) for case, limit in limits),
    ]
    others = [
        # Without the surrounding object, from_json reads only the first value of the text.
        (f"{is_object()} AND {_reads(text)}", quoted_text(_MORE)),
        (f"{opens} AND right(trim(TRAILING ' \t\r\n' FROM {text}), 1) NOT IN ('}}', ']')", quoted_text(_CUT)),
    ]
    foreign = f"concat({quoted_text(f'{_NOT_JSON}: it has ')}, {_foreign()})"
    begins = f"concat({quoted_text(_NOT_JSON)}, ', it begins with \"', {shown(text)}, '\"')"

    def first(cases: Sequence[tuple[str, str]]) -> str:
        return " ".join(f"WHEN {case} THEN {reason}" for case, reason in cases)

    # Long parts occur only once in the text, for which Spark's parser needs seconds.
    return f"coalesce(CASE {first(certain)} END, {foreign}, CASE {first(others)} ELSE {begins} END)"


def _reads(text: str, *limits: str, foreign: Collection[str] = (), as_fields: str = "") -> str:
    """Return an expression that tells whether from_json reads the first value of a text.

    Args:
        text: An expression for the text.
        limits: Keys of `_LIMITS`: the limits of Spark's JSON reader to lift.
        foreign: Keys of `_NOT_OF_JSON`: the extensions of JSON to permit.
        as_fields: Fields of the value to read, as DDL.
    """
    options = {"columnNameOfCorruptRecord": UNPARSED}
    options |= {name: str(name in foreign).lower() for name in _NOT_OF_JSON}
    options |= dict.fromkeys(limits, "1000000000")
    given = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
    return f"from_json({text}, 'STRUCT<{as_fields}{UNPARSED}: STRING>', map({given})).{UNPARSED} IS NULL"


def _is_one_value(text: str, foreign: Collection[str] = ()) -> str:
    """Return an expression that tells whether a text is exactly one JSON value.

    Args:
        text: An expression for the text.
        foreign: Keys of `_NOT_OF_JSON`: the extensions of JSON to permit.
    """
    # A text is exactly one value if from_json reads it both as a member of an object and as an item of an
    # array. Text such as `1, "b": 2` or `1, 2` is only valid in one of the two.
    return f"{_reads(_named(text), foreign=foreign)} AND {_reads(_listed(text), foreign=foreign)}"


def _foreign() -> str:
    """Return an expression that names the extensions of JSON that a body uses.

    The expression is NULL if the body uses none, or isn't one value even with the extensions.
    """
    marked, every = TEXT, tuple(_NOT_OF_JSON)
    begins = f"startswith({marked}, '{_BYTE_ORDER_MARK}')"
    text = f"ltrim('{_BYTE_ORDER_MARK}', {marked})"
    bare = f"regexp_replace({text}, {quoted_text(_TRAILING_COMMA)}, '$1')"
    found = [
        f"CASE WHEN {begins} THEN 'a byte order mark' END",
        f"CASE WHEN NOT ({_is_one_value(text, every)}) THEN 'a comma behind the last item' END",
        *(
            f"CASE WHEN NOT ({_is_one_value(bare, [each for each in every if each != option])}) "
            f"THEN {quoted_text(shown_as)} END"
            for option, shown_as in _NOT_OF_JSON.items()
        ),
    ]
    return (
        f"CASE WHEN {_is_one_value(bare, every)} THEN nullif(concat_ws(' and ', {', '.join(found)}), '') END"
    )


def _named(text: str) -> str:
    return f"concat('{{\"_\":', {text}, '\n}}')"  # the line feed ends a comment at the end of the text


def _listed(text: str) -> str:
    return f"concat('{{\"_\":[', {text}, '\n]}}')"


def _fault(forms: TimestampForms, kind: DataType, value: str, path: str) -> str:
    """Return an expression for a struct with a reason and the value that doesn't fit; NULL if the value fits.

    Args:
        forms: Further forms of a `TIMESTAMP`.
        kind: Type of the field.
        value: An expression for the value, a VARIANT that is neither NULL nor JSON `null`.
        path: An expression for the field's path; `''` for the body itself.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - only jobs have pyspark

    misfit = _misfit(path, quoted_text(type_name(kind)), value)
    each = lambda_variable(value)
    match kind:
        case StructType():
            return _record_fault(forms, kind, value, path)
        case ArrayType():
            place = f"concat({path}, '[', {each}_index, ']')"
            fault = _item_fault(forms, kind.elementType, each, place, nullable=kind.containsNull)
            found = f"transform({from_variant(value, 'ARRAY<VARIANT>')}, ({each}, {each}_index) -> {fault})"
            is_other = f"{variant_kind(value)} NOT LIKE 'ARRAY<%'"
            return f"CASE WHEN {is_other} THEN {misfit} ELSE {_first(found, each)} END"
        case MapType():
            place = f"concat({path}, '[\\'', {each}.key, '\\']')"
            fault = _item_fault(
                forms, kind.valueType, f"{each}.value", place, nullable=kind.valueContainsNull
            )
            entries = f"map_entries({from_variant(value, 'MAP<STRING, VARIANT>')})"
            found = f"transform({entries}, {each} -> {fault})"
            is_other = f"{variant_kind(value)} NOT LIKE 'OBJECT<%'"
            return f"CASE WHEN {is_other} THEN {misfit} ELSE {_first(found, each)} END"
    if kind.simpleString() == "variant":
        why = f"concat('field \\'', {path}, '\\': the value has a number beyond DOUBLE')"
        reason = f"named_struct('reason', {why}, 'value', CAST(NULL AS VARIANT))"
        return f"CASE WHEN {_has_infinite(value)} THEN {reason} END"
    return f"CASE WHEN NOT coalesce({fits_type(forms, kind, value)}, false) THEN {misfit} END"


def _misfit(path: str, expected: str, value: str) -> str:
    """Return an expression for the fault of a value that doesn't fit, see `_fault`.

    Args:
        path: An expression for the field's path.
        expected: An expression for the name of the field's type.
        value: An expression for the value.
    """
    why = f"concat('field \\'', {path}, '\\': the value is no ', {expected})"
    return f"named_struct('reason', {why}, 'value', {value})"


def _first(faults: str, each: str) -> str:
    """Return an expression for the first item of an array that isn't NULL; NULL if there is none."""
    return f"get(filter({faults}, {each} -> {each} IS NOT NULL), 0)"


class _Rule(TypedDict):
    """The test for one value of a record.

    Attributes:
        place: Path of the value within the record, such as `.address.city`.
        expected: Name of the value's type.
        test: `_IS_OBJECT`, `_HAS_REQUIRED`, or the number of another test.
        required: Whether the field is NOT NULL.
        inside: Index of the rule for the object that contains the field; for `_HAS_REQUIRED`: of the object.
        members: For `_HAS_REQUIRED`: the number of rules for the object's members, at any depth.
    """

    place: str
    expected: str
    test: int
    required: bool
    inside: int
    members: int


_RULES: Final = (
    "ARRAY<STRUCT<place: STRING, expected: STRING, test: INT, required: BOOLEAN, inside: INT, members: INT>>"
)
_IS_OBJECT, _HAS_REQUIRED, _OTHER_TESTS = range(3)


class _Record:
    """The rules for an object and its members at any depth, in the order of the fields.

    An array or a map is one member: its items have no rules here.

    Spark's plan has one test for each type, and the rules are an array in one literal; the rule with an index
    applies to the value with the same index. With an expression for each field instead, the plan would grow
    with the number of fields, and planning would take longer than reading the bodies.

    Attributes:
        rules: The rules.
        tests: The number of the test for each type.
        values: An expression for the values, an array of VARIANT.
    """

    def __init__(self, kind: StructType, value: str, prefix: str) -> None:
        """Collect the rules of an object.

        Args:
            kind: Type of the object.
            value: An expression for the object, a VARIANT.
            prefix: Text in front of the name of a direct member.
        """
        self.rules: list[_Rule] = []
        self.tests: dict[DataType, int] = {}
        self._prefix = prefix
        self.values = self._object(kind, value, "", required=False, inside=0)

    def _object(self, kind: StructType, value: str, place: str, *, required: bool, inside: int) -> str:
        from pyspark.sql.types import StructType  # noqa: PLC0415 - only jobs have pyspark

        own, each = len(self.rules), lambda_variable(value)
        self._add(kind, place, _IS_OBJECT, required=required, inside=inside)
        arrays: list[str] = []
        members: list[str] = []
        for field in kind.fields:
            inner = f"{place}.{field.name}" if place else f"{self._prefix}{field.name}"
            member, of = member_of(each, field.name), field.dataType
            if isinstance(of, StructType):
                arrays += [
                    *_array_of(members),
                    self._object(of, member, inner, required=not field.nullable, inside=own),
                ]
                members = []
            else:
                test = self.tests.setdefault(of, _OTHER_TESTS + len(self.tests))
                self._add(of, inner, test, required=not field.nullable, inside=own)
                members.append(member)
        parts = [f"array({value})"]
        if kind.fields:
            read_as = ", ".join(f"{quoted_name(field.name)}: VARIANT" for field in kind.fields)
            found = f"concat({', '.join([*arrays, *_array_of(members)])})"
            parts.append(_bound(from_variant(value, f"STRUCT<{read_as}>"), each, found))
        if not all(field.nullable for field in kind.fields):
            self._add(kind, place, _HAS_REQUIRED, required=False, inside=own)
            self.rules[-1]["members"] = len(self.rules) - own - 2
            parts.append(f"array({value})")
        return f"concat({', '.join(parts)})"

    def _add(self, kind: DataType, place: str, test: int, *, required: bool, inside: int) -> None:
        self.rules.append(
            _Rule(
                place=place, expected=type_name(kind), test=test, required=required, inside=inside, members=0
            )
        )


def _array_of(members: Sequence[str]) -> list[str]:
    return [f"array({', '.join(members)})"] if members else []


def _bound(value: str, variable: str, result: str) -> str:
    """Return an expression for a result that uses a value several times, and evaluates it once."""
    return f"get(transform(array({value}), {variable} -> {result}), 0)"


def _record_fault(forms: TimestampForms, kind: StructType, value: str, path: str) -> str:
    """Return an expression for the first fault of an object and its members, see `_fault`."""
    each = lambda_variable(value)
    every, other = f"{each}_all", f"{each}_other"
    is_body = path == "''"
    record = _Record(kind, value, "" if is_body else ".")

    def path_of(variable: str) -> str:
        return f"{variable}.rule.place" if is_body else f"concat({path}, {variable}.rule.place)"

    found, place, names = f"{each}.value", path_of(each), f"{each}_names"
    misfit = _misfit(place, f"{each}.rule.expected", found)
    members = f"slice({every}, {each}.rule.inside + 2, {each}.rule.members)"
    is_lacking = (
        f"{other}.rule.required AND {other}.rule.inside = {each}.rule.inside "
        f"AND ({is_absent(f'{other}.value')})"
    )
    lacking = f"filter({members}, {other} -> {is_lacking})"
    quoted = f"transform({lacking}, {other} -> concat('\\'', {path_of(other)}, '\\''))"
    all_names = f"concat_ws(', ', {names})"
    tests = {
        _IS_OBJECT: f"CASE WHEN {variant_kind(found)} NOT LIKE 'OBJECT<%' THEN {misfit} END",
        _HAS_REQUIRED: _bound(quoted, names, f"CASE WHEN size({names}) > 0 THEN {_missing(all_names)} END"),
        **{test: _fault(forms, of, found, place) for of, test in record.tests.items()},
    }
    cases = " ".join(f"WHEN {each}.rule.test = {test} THEN {fault}" for test, fault in tests.items())
    fault = f"CASE WHEN {is_absent(found)} THEN {_NO_FAULT} {cases} END"
    rules = f"from_json({quoted_text(json.dumps(record.rules, ensure_ascii=False))}, '{_RULES}')"
    pair = f"named_struct('rule', {each}, 'value', {other})"
    pairs = f"zip_with({rules}, {record.values}, ({each}, {other}) -> {pair})"
    return _bound(pairs, every, _first(f"transform({every}, {each} -> {fault})", each))


def _item_fault(forms: TimestampForms, kind: DataType, value: str, place: str, *, nullable: bool) -> str:
    missing = _NO_FAULT if nullable else _missing(f"concat('\\'', {place}, '\\'')")
    return f"CASE WHEN {is_absent(value)} THEN {missing} ELSE {_fault(forms, kind, value, place)} END"


def _missing(names: str) -> str:
    reason = f"concat('required but missing: ', {names})"
    return f"named_struct('reason', {reason}, 'value', CAST(NULL AS VARIANT))"


def _has_infinite(value: str) -> str:
    """Return an expression that tells whether a VARIANT has a number beyond DOUBLE at any depth."""
    text = TEXT
    # An infinity in the VARIANT is a number beyond DOUBLE, or the string "Infinity". It was a number if the
    # body has fewer infinities after all such numbers are replaced.
    without = f"regexp_replace(concat('[', {text}, ']'), {quoted_text(VAST)}, '1')"

    def count(variant: str) -> str:
        return f"regexp_count(to_json({variant}), {quoted_text(_INFINITE)})"

    return (
        f"({text} RLIKE {quoted_text(VAST)} AND {count(value)} > 0 AND "
        f"coalesce({count(WHOLE)} > {count(f'try_parse_json({without})')}, true))"
    )
