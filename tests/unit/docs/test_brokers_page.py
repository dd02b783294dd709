from __future__ import annotations

import re

from tests.docs.brokers_page import MEANINGS, missing_words, render, render_picture_source

RESULT = {
    "product": "activemq",
    "version": "6.3.1",
    "capabilities": {
        **dict.fromkeys(MEANINGS, False),
        "selector": True,
        "body_kinds": ["bytes", "text"],
        "max_property_characters": 3000,
    },
    "tests": {"test_order": "passed", "test_move": "failed"},
}


def test_every_capability_has_words() -> None:
    assert missing_words() == set()


def test_the_page_says_what_was_found() -> None:
    page = render({"activemq": RESULT})
    assert "|  | ActiveMQ Classic |" in page
    assert "| version tested | 6.3.1 |" in page
    assert "| contract tests passed | 1 of 2 |" in page
    assert "| `selector` | yes |" in page
    assert "| `browse` | no |" in page
    assert "| body kinds | bytes, text |" in page
    assert "| longest property, characters | 3,000 |" in page
    assert "test_" not in page


def test_a_skipped_test_counts_neither_way() -> None:
    tests = {"test_order": "passed", "test_move": "failed", "test_refusal": "skipped"}
    assert "| contract tests passed | 1 of 2; 1 not run |" in render({"activemq": {**RESULT, "tests": tests}})


def test_the_picture_says_the_same_as_the_page() -> None:
    source = render_picture_source({"activemq": RESULT, "memory": {**RESULT, "product": "memory"}})
    assert "<B>ActiveMQ Classic</B></TD><TD><B>in memory (vm://)</B>" in source
    rows = dict(re.findall(r'<TD ALIGN="LEFT">([^<]+)</TD>(.*)</TR>', source))
    assert len(rows) == len(MEANINGS)
    assert re.findall(r">(yes|no)<", rows["Message selectors"]) == ["yes", "yes"]
    assert re.findall(r">(yes|no)<", rows["Priorities"]) == ["no", "no"]
