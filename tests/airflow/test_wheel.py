"""The wheel, as a user gets it: built, installed into an empty environment, known to Airflow there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from airflow_provider_jmsjca import __version__

ROOT = Path(__file__).parents[2]


def _uv() -> str:
    own = ROOT / ".run" / "tools" / "bin" / "uv"
    found = str(own) if own.exists() else shutil.which("uv")
    if found is None:
        pytest.fail("there is no uv: run the tests by `make test`, which brings it")
    return found


def _run(*command: str | Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (found,) = folder.glob("*.whl")
    return found


def test_it_holds_the_package_its_types_its_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"airflow_provider_jmsjca", f"airflow_provider_jmsjca-{__version__}.dist-info"}
    assert "airflow_provider_jmsjca/py.typed" in names
    assert f"airflow_provider_jmsjca-{__version__}.dist-info/licenses/LICENSE" in names


def test_it_installs_into_an_empty_environment_where_airflow_lists_it(wheel: Path, tmp_path: Path) -> None:
    uv, environment = _uv(), tmp_path / "venv"
    _run(uv, "venv", "--quiet", "--python", sys.executable, environment)
    at = {**os.environ, "VIRTUAL_ENV": str(environment)}
    _run(uv, "pip", "sync", "--quiet", "--require-hashes", "requirements/dev.txt", environment=at)
    _run(uv, "pip", "install", "--quiet", "--offline", wheel, environment=at)

    home = {"AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
    shown = _run(
        environment / "bin" / "airflow", "providers", "list", "--output", "json", environment=bare | home
    )

    providers = {row["package_name"]: row["version"] for row in json.loads(shown)}
    assert providers["airflow-provider-jmsjca"] == __version__
