from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import debian
from tests.servers.debian import require_package
from tests.servers.errors import ServerUnavailableError

ROOT = Path(__file__).parents[3]

OPTIONS = "-q -o DPkg::Lock::Timeout=300"
APT = """#!/bin/sh
echo "$DEBIAN_FRONTEND $*" >> {log}
test -x {policy} && {policy}; echo "policy says $?" >> {log}
case "$*" in *install*) test -e {lists} || exit 100; touch {program};; *update) touch {lists};; esac
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without RabbitMQ whose `apt-get` knows the package once its lists are up to date."""
    monkeypatch.setattr(debian, "_POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = tmp_path / "bin" / "apt-get"
    program.parent.mkdir()
    program.write_text(
        APT.format(
            log=tmp_path / "log",
            policy=tmp_path / "policy-rc.d",
            lists=tmp_path / "lists",
            program=tmp_path / "rabbitmq-server",
        )
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return tmp_path


def test_root_gets_it_installed_without_a_service(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    require_package("rabbitmq-server", machine / "rabbitmq-server")
    install = (
        f"noninteractive {OPTIONS} install -y --no-install-recommends rabbitmq-server\npolicy says 101\n"
    )
    assert (
        machine / "log"
    ).read_text() == f"{install}noninteractive {OPTIONS} update\npolicy says 101\n{install}"
    assert not (machine / "policy-rc.d").exists()


def test_policy_of_the_machine_is_left_alone(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (machine / "policy-rc.d").write_text("theirs")
    (machine / "lists").touch()
    require_package("rabbitmq-server", machine / "rabbitmq-server")
    assert (machine / "policy-rc.d").read_text() == "theirs"


def test_why_apt_failed_is_in_the_one_line(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program = machine / "bin" / "apt-get"
    program.write_text(
        "#!/bin/sh\necho Reading package lists...\necho 'E: Unable to locate package' >&2\nexit 100\n"
    )
    with pytest.raises(ServerUnavailableError) as caught:
        require_package("rabbitmq-server", machine / "rabbitmq-server")
    assert "apt-get could not install it (E: Unable to locate package); on Debian" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (machine / "policy-rc.d").exists()


def test_ordinary_user_is_told_what_root_can_do(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        ServerUnavailableError, match="apt-get install --no-install-recommends rabbitmq-server"
    ):
        require_package("rabbitmq-server", machine / "rabbitmq-server")
    assert not (machine / "log").exists()


def test_machine_without_apt_leaves_it_out(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine))
    with pytest.raises(ServerUnavailableError, match="rabbitmq-server left out: no apt-get here"):
        require_package("rabbitmq-server", machine / "rabbitmq-server")


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)], ids=["at home", "in CI"])
def test_missing_broker_is_skipped_aloud_and_fails_in_ci(tmp_path: Path, ci: str, code: int) -> None:
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n"
        "from tests.servers import rabbitmq as module\n"
        "module.PROGRAM = Path('/nowhere/rabbitmq-server')\n"
        "def test_with(rabbitmq): pass\n"
    )
    options = [
        "-p",
        "tests.servers.fixtures",
        "-c",
        os.devnull,
        "--rootdir",
        tmp_path,
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, tmp_path],
        cwd=ROOT,
        env={
            "PATH": str(tmp_path),
            "CI": ci,
            "JMSJCA_RUN_DIR": str(tmp_path / "run"),
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert "rabbitmq-server left out: no apt-get here" in done.stdout
    assert ("! not tested !" in done.stdout) == (ci == "")
