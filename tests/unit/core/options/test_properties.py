"""Options text: J37, J44, J58, J101, J113."""

from __future__ import annotations

import contextlib
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.options import (
    format_options,
    masked_options,
    parse_options,
    read_properties,
)
from airflow_provider_jmsjca.errors import ConfigurationError
from tests.pace import at_most
from tests.unit.core.texts import ANY_TEXT

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        ("a=b\nc=d\r\ne=f\rg=h", {"a": "b", "c": "d", "e": "f", "g": "h"}),
        ("# comment\n! comment\n\n  a = b ", {"a": "b "}),
        ("a:b\nc d\ne", {"a": "b", "c": "d", "e": ""}),
        ("a = b=c", {"a": "b=c"}),
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a\\ b\\=c=d", {"a b=c": "d"}),
        ("a=\\u00e9\\t\\n\\q", {"a": "é\t\nq"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=x\\\n#no comment", {"a": "x#no comment"}),
        ("a=b\\", {"a": "b"}),
        ("JMSJCA.NoXA=true", {"JMSJCA.NoXA": "true"}),
    ],
)
def test_reads_java_properties_j113(text: str, options: dict[str, str]) -> None:
    assert parse_options(text) == options


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("JMSJCA.sep=,JMSJCA.NoXA=true,JMSJCA.ACC=true", {"JMSJCA.NoXA": "true", "JMSJCA.ACC": "true"}),
        (r"JMSJCA.sep=*JMSJCA.NoXA=true*queuepattern=Q.\*", {"JMSJCA.NoXA": "true", "queuepattern": "Q.*"}),
        ("JMSJCA.sep=,", {}),
        (r"JMSJCA.sep=,a=b\\,c=d", {"a": "b\\", "c": "d"}),
        ("jmsjca.SEP=;a=1;b=2;", {"a": "1", "b": "2"}),
        ("JMSJCA.sep= a=1 b=2", {"a": "1", "b": "2"}),
        ("a=b~JMSJCA.sep=~c=d", {"a": "b", "c": "d"}),
        (r"a=b~JMSJCA.sep=~c=d\~d", {"a": "b", "c": "d~d"}),
        (r"a=b\~c~JMSJCA.sep=~d=e", {"a": "b~c", "d": "e"}),
        ("JMSJCA.sep=|c=d|a=b|e=f|", {"c": "d", "a": "b", "e": "f"}),
        ("a=b\nJMSJCA.sep=,c=d,e=f\ng=h", {"a": "b", "c": "d", "e": "f", "g": "h"}),
        ("a=b,c=d,JMSJCA.sep=,", {"a": "b", "c": "d"}),
    ],
)
def test_separator_on_one_line_j101(text: str, options: dict[str, str]) -> None:
    assert parse_options(text) == options


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("JMSJCA.sep=", "options: JMSJCA.sep: got nothing"),
        ("JMSJCA.sep=xa=b", "got 'x'"),
        ("a=b~JMSJCA.sep=", "options: JMSJCA.sep: got nothing, expected a separating character"),
        (
            "a=b\nJMSJCA.sep:,",
            "options, line 2: JMSJCA.sep: expected JMSJCA.sep= and the separating character",
        ),
        ("a=\\u12", "options, line 1: broken escape"),
        ("a=\\ud83d", "half of a surrogate pair"),
        ("ok=1\n=b", "options, line 2: a value without a key"),
        ("JMSJCA.noxaa=1", "unknown option JMSJCA.noxaa (did you mean JMSJCA.NoXA?)"),
        ("JMSJCA.sep=,=a,\\uzzzz=1", "options, entry 1: a value without a key"),
    ],
)
def test_refuses(text: str, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_options(text)
    assert fault in str(caught.value)


def test_reports_every_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_options("=1\n=2\na=\\u1")
    assert len(caught.value.faults) == 3


def test_masks_secrets() -> None:
    assert masked_options("a=b\npassword=hunter2\nssl.keyStorePassword=hunter2") == (
        "a=b\npassword=***\nssl.keyStorePassword=***"
    )
    assert masked_options("password=\\u") == "***"


@settings(max_examples=EXAMPLES, deadline=None)
@given(ANY_TEXT | st.text(alphabet="JMSJCA.sep=,\\u0a:#! \n\r\t").map("JMSJCA.sep={}".format))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert isinstance(parse_options(text), dict)


def test_a_value_that_looks_like_the_separator_is_written_so_that_it_is_read() -> None:
    options = {"note": "as in jmsjca.SEP=~a", "b": "~"}
    assert read_properties(format_options(options)) == options


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.dictionaries(_TEXTS.filter(lambda key: key and key.lower() != "jmsjca.sep"), _TEXTS, max_size=5))
def test_what_is_written_is_read(options: dict[str, str]) -> None:
    assert read_properties(format_options(options)) == options


def test_a_line_that_goes_on_and_on_takes_time_in_proportion() -> None:
    began = time.process_time()
    assert len(read_properties("a=" + "b\\\n" * 400_000)["a"]) == 400_000
    # 0.3 s; where each part copies all before it, 20 s.
    assert time.process_time() - began < at_most(3)
