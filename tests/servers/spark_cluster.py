"""A standalone cluster of Spark: a master and two workers, with one core and one executor each."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import psutil

from tests.servers.java import spark_java_home
from tests.servers.ports import HOST
from tests.servers.server import Server

WORKERS = 2
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class SparkCluster(Server):
    """A cluster whose processes know nothing of this package and of the environment of the tests."""

    name: ClassVar[str] = "spark"
    port_names: ClassVar[tuple[str, ...]] = ("master", "web")

    @property
    def url(self) -> str:
        """The master's address, as `spark-submit --master` takes it."""
        return f"spark://{HOST}:{self.ports['master']}"

    def executors(self) -> list[psutil.Process]:
        """Return the executors that run now, the oldest first. A worker starts another for one that dies."""
        found = []
        for role, worker in self._processes.items():
            for process in psutil.Process(worker.pid).children() if role != "server" else ():
                try:
                    if process.status() != psutil.STATUS_ZOMBIE and _EXECUTOR in process.cmdline():
                        found.append(process)
                except psutil.NoSuchProcess:
                    continue
        return sorted(found, key=psutil.Process.create_time)

    def _prepare(self) -> None:
        pass

    def _command(self) -> Sequence[str | Path]:
        address = ["--port", str(self.ports["master"]), "--webui-port", str(self.ports["web"])]
        return [*_java(), _MASTER, "--host", HOST, *address]

    def _environment(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PY", "SPARK"))}
        # What `spark-class` would find out, for the executors that a worker starts.
        (core,) = (_home() / "jars").glob("spark-core_*.jar")
        scala = core.name.removeprefix("spark-core_").partition("-")[0]
        own = {"SPARK_HOME": str(_home()), "SPARK_LOCAL_IP": HOST, "SPARK_SCALA_VERSION": scala}
        return {"JAVA_HOME": str(spark_java_home()), **kept, **own}

    def _answers(self) -> bool:
        # A worker that doesn't find the master waits for ten seconds: they start once it is there.
        for name in (f"worker-{number}" for number in range(WORKERS)):
            if name not in self._processes:
                place = ["--host", HOST, "--webui-port", "0", "--work-dir", str(self.folder / name)]
                self._run(name, [*_java(), _WORKER, *place, "--cores", "1", "--memory", "1g", self.url])
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.ports['web']}/json/", timeout=30) as answer:
                return bool(json.load(answer)["aliveworkers"] == WORKERS)
        except (
            OSError,
            ValueError,
        ):  # its pages come one after the other: first there is another in this place
            return False


def _home() -> Path:
    import pyspark  # noqa: PLC0415 - slow to import

    return Path(pyspark.__file__).parent


def _java() -> list[str | Path]:
    """Return how Spark's daemons are started here; `spark-class` would start another JVM to find that out."""
    quickly = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Dspark.master.rest.enabled=false"]
    java = Path(os.environ.get("JAVA_HOME") or spark_java_home()) / "bin" / "java"
    return [java, *quickly, "-cp", f"{_home() / 'jars'}/*"]


def bare_python(folder: Path, *more: ModuleType) -> Path:
    """Return a Python that has PySpark and PyArrow and nothing else, as a cluster's often is.

    Args:
        folder: Where its environment is made.
        more: What it shall have besides.
    """
    import venv  # noqa: PLC0415 - only here

    import py4j  # noqa: PLC0415 - slow to import
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyspark  # noqa: PLC0415 - as above

    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for module in (pyspark, py4j, pa, *more):
        home = Path(str(module.__file__)).parent
        (packages / home.name).symlink_to(home)
    return folder / "bin" / Path(sys.executable).name
