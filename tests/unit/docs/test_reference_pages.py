"""The Python in the reference pages on messages and selectors runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[3] / "docs" / "reference"


@pytest.mark.parametrize("page", ["messages.md", "selectors.md"])
def test_the_examples_run(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {})  # noqa: S102 - our own pages
