from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spool.batch_id import TaskKey, check_batch_id


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (TaskKey(dag_id="flights", run_id="r1", task_id="collect"), "flights~~r1~~collect~~-1"),
        (
            TaskKey(
                dag_id="d", run_id="manual__2026-01-02T03:04:05+00:00", task_id="group.collect", map_index=7
            ),
            "d~~manual__2026-01-02T03~3A04~3A05~2B00~3A00~~group.collect~~7",
        ),
        (TaskKey(dag_id="é", run_id="a b", task_id="~"), "~C3~A9~~a~20b~~~7E~~-1"),
        (TaskKey(dag_id="_d", run_id="r", task_id="t"), "~5Fd~~r~~t~~-1"),
        (TaskKey(dag_id="..", run_id="/etc", task_id="t"), "~2E.~~~2Fetc~~t~~-1"),
    ],
)
def test_a_task_instance_names_its_batch(key: TaskKey, expected: str) -> None:
    assert key.batch_id() == expected
    assert TaskKey.parse(expected) == key
    assert check_batch_id(expected) == expected


@given(
    st.builds(
        TaskKey,
        dag_id=st.text(min_size=1, max_size=12),
        run_id=st.text(min_size=1, max_size=12),
        task_id=st.text(min_size=1, max_size=12),
        map_index=st.integers(-1, 10_000),
    )
)
def test_every_name_is_one_safe_component_of_a_path(key: TaskKey) -> None:
    name = key.batch_id()
    assert check_batch_id(name) == name
    assert name.isascii()
    assert not set(name) & set("/\\:=%? \0*")
    assert name[0] not in "._"
    assert len(name) <= 180
    assert TaskKey.parse(name) in {key, None}


def test_a_long_name_keeps_a_readable_beginning_and_stays_different() -> None:
    one = TaskKey(dag_id="flights", run_id="x" * 300, task_id="a").batch_id()
    other = TaskKey(dag_id="flights", run_id="x" * 300, task_id="b").batch_id()
    assert one.startswith("flights~~xxxx")
    assert len(one) == len(other) == 180
    assert one != other
    assert TaskKey.parse(one) is None
    assert check_batch_id(one) == one


def test_a_long_name_is_not_cut_within_an_escape() -> None:
    for length in range(120, 150):
        name = TaskKey(dag_id="d" * length, run_id=":" * 40, task_id="t").batch_id()
        assert check_batch_id(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "_a", ".a", "a=b", "a b", "~", "~3a", "x" * 181, "a\n"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="can't name a folder"):
        check_batch_id(name)
