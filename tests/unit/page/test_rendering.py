"""HTML of the page: what a browser shows, and what it sends back."""

from __future__ import annotations

from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from airflow_provider_jmsjca.page.rendering import rendered


class _Fields(HTMLParser):
    """Collects the fields of a form, as a browser reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str | None] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "input" and (name := given.get("name")):
            self.found[name] = given.get("value")


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "a\"b<c>&amp;'",
        "zero\u200bwidth",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "no\xa0break",
        "\u202egnol",
        "a\tb",
        r"a\u200bb",
    ],
)
def test_a_form_sends_back_the_name_that_was_given(name: str) -> None:
    visit = SimpleNamespace(base="/jms", path="queue", user=SimpleNamespace(get_name=lambda: "eve"))
    page = rendered(
        "confirm.html",
        visit=visit, link=lambda path: path, current_url="/jms/queue", token="t",
        title="orders", question="?", text="", fields={"to": name}, button="Move", back="/jms/queue",
    )  # fmt: skip
    form = _Fields()
    form.feed(page)
    assert form.found["to"] == name
    assert page.replace("\n", "").isprintable()
