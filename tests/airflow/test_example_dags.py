from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from airflow.sdk import DAG

EXAMPLES = sorted((Path(__file__).parents[2] / "example_dags").glob("example_*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_can_be_read_and_has_tasks(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dags = [value for value in vars(module).values() if isinstance(value, DAG)]
    assert [dag.dag_id for dag in dags] == [path.stem]
    assert dags[0].tasks
