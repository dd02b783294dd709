"""Options for Java processes that live for seconds, as most Sparks and brokers of the tests do.

The optimizing compiler and a parallel collector cost those more than they save: 40 % of the processor time of
a small Spark job. A third of the rest goes into loading classes, which an archive of loaded classes saves.
Java itself ignores an archive that doesn't fit.

A fifth of what is left goes into Python: each driver and worker compiles PySpark anew, for Spark's home has
it as a zip without bytecode, and Python finds that before the installed package. A home without that zip
saves this. It also helps workers that are given 10 s to start, as those of streaming sources are.

`python -m tests.servers.short_lived` makes archive and home, once for a checkout; `make test` calls it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.servers.errors import ServerError
from tests.servers.folders import run_folder
from tests.servers.java import BROKER_OPTIONS, find_java, spark_java_home
from tests.servers.ports import HOST

_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
NAMES: Final = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS", BROKER_OPTIONS)
"""The environment variables with the options."""
_SECONDS = 300
_JOB = """\
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

spark = SparkSession.builder.getOrCreate()
bodies = spark.createDataFrame([('{"id": 1}', 1)], "body string, n int")
rows = bodies.select(from_json("body", "id long").alias("row"), "n")
mapped = rows.mapInArrow(lambda batches: batches, "row struct<id: long>, n int")
mapped.select("row.id", "n").write.mode("append").partitionBy("n").parquet("table")
assert spark.read.parquet("table").where(col("id") > 0).count() == 1
spark.stop()
"""


def spark_environment() -> dict[str, str]:
    """Return what Spark needs to run on any machine.

    Where there is no Java, Spark gets the one of the wheel, as the brokers do. Spark's own way to an address,
    the name of the host, isn't gone: not every machine finds that.
    """
    found = {"SPARK_LOCAL_IP": HOST}
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        found["JAVA_HOME"] = str(spark_java_home())
    return found


def options() -> dict[str, str]:
    """Return the environment variables with the options; archive and home are among them if they are made."""
    archive, home = _archive(), _home()
    shared = f" -XX:SharedArchiveFile={archive} -Xlog:cds*=off" if archive.exists() else ""
    at_home = {"SPARK_HOME": str(home)} if home.exists() else {}
    return at_home | {
        "SPARK_LAUNCHER_OPTS": _QUICK,
        "SPARK_SUBMIT_OPTS": _QUICK + shared,
        BROKER_OPTIONS: "-XX:TieredStopAtLevel=1",
    }


def _archive() -> Path:
    """Return where the archive of the Spark and the Java in use is, or would be."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "java")
    return run_folder() / f"spark-classes-{_digest(java.resolve(), _home())}.jsa"


def _home() -> Path:
    """Return where the home of the Spark in use is that has no PySpark of its own, or would be."""
    return run_folder() / f"spark-home-{_digest(_spark())}"


def _spark() -> Path:
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise ServerError("pyspark isn't installed; make setup installs it")
    return Path(spark.origin).parent


def _digest(*of: Path) -> str:
    return hashlib.sha256("\n".join(map(str, of)).encode()).hexdigest()[:12]


def _make_home() -> None:
    home = _home()
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as folder:
            made = Path(folder) / home.name
            made.mkdir()
            for name in ("bin", "jars", "sbin"):
                (made / name).symlink_to(_spark() / name)
            made.rename(home)


def _archive_java_itself(java: Path) -> None:
    """Make the archive of Java's own classes, on which every other builds.

    The Java of the wheel comes without. Any other Java belongs to the machine, and is left as it is.
    """
    if java.is_relative_to(sys.prefix):
        subprocess.run([java, "-Xshare:dump"], capture_output=True, timeout=_SECONDS, check=False)


def main() -> int:
    """Make home and archive, unless they are there; return the exit code, 0 also without an archive."""
    java = find_java()
    os.environ |= spark_environment()
    _make_home()
    archive = _archive()
    if archive.exists():
        return 0
    _archive_java_itself(java)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as name:
        folder = Path(name)
        job, made = folder / "job.py", folder / "made.jsa"
        job.write_text(_JOB, encoding="utf-8")
        environment = os.environ | options() | {"PYSPARK_PYTHON": sys.executable}
        environment["SPARK_SUBMIT_OPTS"] += f" -XX:ArchiveClassesAtExit={made}"
        done = subprocess.run(
            ["spark-submit", "--master", "local[1]", "--conf", "spark.ui.enabled=false", str(job)],
            env=environment, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode or not made.exists():
            why = done.stdout.strip() if done.returncode == 0 else done.stderr
            print(f"Sparks of the tests start slowly, for there is no archive of classes: {why[-500:]}")
            return 0
        made.replace(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
