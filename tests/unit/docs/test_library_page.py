"""The library page does what it says: its blocks run one after the other, in memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca.transports.memory import broker
from airflow_provider_jmsjca.transports.stomp import dialects

PAGE = Path(__file__).parents[3] / "docs" / "library.md"


def test_the_blocks_run_and_print_what_the_page_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialects, "_known", known := dict(dialects.BY_SERVER))
    text = PAGE.read_text("utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        if 'scheme="stomp"' in block or "JmsHook" in block:
            compile(block, "library", "exec")  # a real broker, and Airflow: other tests have them
        else:
            exec(compile(block, "library", "exec"), names)  # noqa: S102 - our own page

    assert f"prints `{capsys.readouterr().out.strip()}`" in text
    assert [message.body for message in broker("library").messages("booked")] == ["good"]
    assert [message.body for message in broker("library").messages("orders.dlq")] == ["bad"]
    assert known["Toy"].product == "toy"
