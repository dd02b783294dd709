"""Every Python block of the README and the how-to pages that builds a DAG can be run as it stands."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from airflow.sdk import DAG

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    ROOT / "docs" / "quickstart.md",
    ROOT / "docs" / "tutorial.md",
]
BLOCKS = [
    pytest.param(textwrap.dedent(block), id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?) *```", page.read_text("utf-8"), re.DOTALL))
    if "DAG(" in block
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_block_builds_a_dag_with_tasks(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[DAG] = []
    enter = DAG.__enter__

    def noted(dag: DAG) -> DAG:
        opened.append(dag)
        return enter(dag)

    monkeypatch.setattr(DAG, "__enter__", noted)
    exec(compile(block, "documentation", "exec"), {})  # noqa: S102 - our own pages

    assert opened
    assert all(dag.tasks for dag in opened)
