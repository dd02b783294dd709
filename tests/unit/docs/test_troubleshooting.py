"""Each error that the troubleshooting page explains still stands in the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "production" / "troubleshooting.md"
QUOTED = re.findall(r"^### `(.+)`$", PAGE.read_text("utf-8"), re.MULTILINE)


def texts() -> str:
    """Return every text of the package, with … for what is filled in, one a line."""
    found = []
    for path in (ROOT / "airflow_provider_jmsjca").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [each.value if isinstance(each, ast.Constant) else "…" for each in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[-.\d]*[sdrf]", "…", node.value))
    return "\n".join(found)


@pytest.fixture(scope="module")
def said() -> str:
    return texts()


def test_the_page_explains_thirty_errors() -> None:
    assert len(QUOTED) >= 30
    assert len({*QUOTED}) == len(QUOTED)


@pytest.mark.parametrize("quoted", QUOTED)
def test_the_error_stands_in_the_package(quoted: str, said: str) -> None:
    # Some heads begin or end with what differs: only the rest has to stand together.
    text = r".*?".join(re.escape(part) for part in quoted.strip("… ").split("…"))
    assert re.search(text, said), quoted
