"""The wheel, as a user gets it: built, installed into an empty environment, known to Airflow there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from airflow_provider_jmsjca import JmsMessage, __version__
from tests.internals.spark import messages_to_table, write_archive
from tests.internals.spool import Done, Row, SpoolBatch, take_fence
from tests.servers.spark_cluster import bare_python

ROOT = Path(__file__).parents[2]
PAGE = ("static/htmx.min.js", "static/page.css", "templates/layout.html", "templates/activations.html")


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
    assert {f"airflow_provider_jmsjca/page/{each}" for each in PAGE} <= set(names)
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


@pytest.fixture(scope="module")
def job_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job-wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT / "job")
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_of_the_job_library_is_what_is_sent_to_clusters(job_wheel: Path, tmp_path: Path) -> None:
    archive = zipfile.ZipFile(write_archive(tmp_path / "jms-job.zip"))
    wheel = zipfile.ZipFile(job_wheel)
    shared = [
        name for name in wheel.namelist() if ".dist-info/" not in name and not name.endswith("/LICENSE")
    ]
    assert sorted(shared) == sorted(archive.namelist())
    assert all(wheel.read(name) == archive.read(name) for name in shared)
    rooms = {name.split("/")[1].removesuffix(".py") for name in shared}
    texts = [archive.read(name).decode() for name in shared if name.count("/") > 1]
    ours = re.compile(r"^ *from airflow_provider_jmsjca\.(\w+)", re.MULTILINE)
    asked = {room for text in texts for room in ours.findall(text)}
    assert asked <= rooms  # what is in it needs nothing that isn't
    assert job_wheel.name == f"airflow_provider_jmsjca_job-{__version__}-py3-none-any.whl"


def test_the_ready_made_job_runs_from_that_wheel_with_pyspark_and_pyarrow_alone(
    job_wheel: Path, tmp_path: Path
) -> None:
    with SpoolBatch(tmp_path / "spool", "b1", source="queue://orders", activation="a") as batch:
        bodies = ("no JSON", *(json.dumps({"id": number}) for number in range(3)))
        batch.seal([Row(JmsMessage.text(body), 1_700_000_000_000_000) for body in bodies])
        manifest = batch.complete()
    script = tmp_path / "job.py"
    script.write_bytes(Path(messages_to_table.__file__).read_bytes())  # as where the rest isn't installed
    bare = bare_python(tmp_path / "bare")
    found = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PY"))}
    _run(
        Path(sys.executable).parent / "spark-submit",
        *("--master", "local[1]", "--conf", "spark.ui.enabled=false", "--py-files", job_wheel),
        *("--conf", "spark.sql.shuffle.partitions=2", script),
        *("--manifest", manifest.uri, "--batch-id", "b1", "--fence", str(take_fence(manifest.folder))),
        *("--table", tmp_path / "table", "--schema", "id LONG NOT NULL"),
        environment={**found, "PYSPARK_PYTHON": str(bare)},
    )
    done = Done.read(manifest.folder)
    assert done is not None
    assert (done.stored, done.rejected) == ({str(tmp_path / "table"): 3}, 1)
