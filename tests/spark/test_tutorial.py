"""The tutorial, as a reader does it: its files and commands in their order, a real broker, a real Airflow."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from example_dags.demo.standalone import STOP_SECONDS, Standalone

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
# The environment that runs this is what they make.
MADE = {"make setup", "source .venv/bin/activate"}


def commands(block: str) -> list[str]:
    return [line[2:] for line in block.splitlines() if line.startswith("$ ") and line[2:] not in MADE]


@pytest.mark.timeout(900)
def test_every_step_does_what_the_page_says(tmp_path: Path) -> None:
    home = tmp_path / "tutorial"
    text = PAGE.read_text("utf-8").replace(".run/tutorial", str(home))
    text = text.replace("AIRFLOW_HOME=$PWD/", "AIRFLOW_HOME=")
    for name, block in re.findall(r"Save this as `([^`]+)`[^\n]*\n\n```\w+\n(.*?)```", text, re.DOTALL):
        file = Path(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(line for line in block.splitlines() if line not in MADE) + "\n")
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    start, airflow, publish, show, down = blocks

    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    # Free ports, for whatever else runs on this machine; they are no part of the page.
    apart = Standalone(home, home / "dags", {}).environment
    ports = {name: value for name, value in apart.items() if "PORT" in name or "__SERVER_URL" in name}
    environment = {
        **inherited,
        **{name: value for name, value in ports.items() if name.startswith("AIRFLOW__")},
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": apart["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"],
        "JMSJCA_RUN_DIR": str(tmp_path / "run"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }

    def run(block: str, *before: str) -> str:
        script = "\n".join(["set -e", *before, *commands(block)])
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def printed(block: str) -> str:
        return "".join(line + "\n" for line in block.splitlines() if not line.startswith("$ "))

    run(start)
    try:
        *sourced, standalone = commands(airflow)
        with (tmp_path / "standalone.log").open("wb") as log:
            second = subprocess.Popen(
                ["bash", "-c", "\n".join(["set -e", *sourced, f"exec {standalone}"])],
                cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                assert run(publish).endswith(printed(publish))
                assert run(show, *sourced).endswith(printed(show))  # still the first terminal
            finally:
                second.send_signal(signal.SIGINT)
                # What doesn't end in time, a run that has just begun for example, is killed with its group.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    second.wait(STOP_SECONDS)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(second.pid, signal.SIGKILL)
                second.wait(STOP_SECONDS)
    finally:
        run(down)
