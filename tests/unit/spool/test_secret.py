"""The secret of a spool, and the codes that are made with it."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spool.secret import secret_code


def test_a_code_is_the_same_in_every_process_and_of_one_name_alone(tmp_path: Path) -> None:
    code = secret_code(tmp_path / "spool", "dag", "monday")
    assert (len(code), set(code) <= set("0123456789abcdef")) == (32, True)
    program = (
        "import sys, pathlib; from airflow_provider_jmsjca.spool.secret import secret_code; "
        "print(secret_code(pathlib.Path(sys.argv[1]), 'dag', 'monday'))"
    )
    again = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "spool"], capture_output=True, text=True, check=True
    )
    assert again.stdout.strip() == code
    others = [
        secret_code(tmp_path / "spool", "dag", "tuesday"),
        secret_code(tmp_path / "spool", "dagm", "onday"),
        secret_code(tmp_path / "other", "dag", "monday"),
    ]
    assert len({code, *others}) == 4
    assert (tmp_path / "spool/.secret").stat().st_mode & 0o777 == 0o600


def test_those_who_make_it_at_once_have_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: secret_code(tmp_path / "spool", "a"), range(32)))) == 1


@pytest.mark.parametrize("content", ["", "0" * 63, "0" * 65, "x" * 64, None])
def test_a_damaged_secret_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / ".secret"
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    with pytest.raises(SpoolError, match=str(path)):
        secret_code(tmp_path, "a")
