from __future__ import annotations

from tests.docs.brokers_page import MEANINGS, RESULTS, missing_words, render

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
    assert "- ActiveMQ Classic: `test_move` failed" in page


def test_the_page_is_as_the_results_beside_it_say() -> None:
    assert RESULTS.with_suffix(".md").read_text(encoding="utf-8") == render()
