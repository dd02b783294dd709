"""A stand-in for YARN: a `spark-submit` that leaves, a driver that stays, a resource manager for both.

The driver is a real one, of Spark on this machine; what is played is YARN around it: the application id in
the output of `spark-submit`, and `GET /ws/v1/cluster/apps/ID` of the ResourceManager REST API as Hadoop 3.4
documents it.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers.ports import HOST

_SUBMIT = """#!{python}
import os, pathlib, shutil, subprocess, sys
folder = pathlib.Path({folder!r})
number = len(list(folder.glob("*.arguments"))) + 1
name = f"application_1700000000000_{{number:04d}}"
(folder / f"{{name}}.arguments").write_text("\\0".join(sys.argv[1:]))
arguments = list(sys.argv[1:])
for option, value in (("--master", "local[1]"), ("--deploy-mode", "client")):
    arguments[arguments.index(option) + 1] = value
if "--py-files" in arguments:  # YARN's client stages them
    at = arguments.index("--py-files") + 1
    staged = [(each, folder / f"{{name}}.{{pathlib.Path(each).name}}") for each in arguments[at].split(",")]
    arguments[at] = ",".join(str(shutil.copy(*each)) for each in staged)
run = "import subprocess, sys, pathlib; file, *command = sys.argv[1:]; " \\
    "code = subprocess.run(command).returncode; pathlib.Path(file + '.new').write_text(str(code)); " \\
    "pathlib.Path(file + '.new').rename(file)"
driver = {driver!r} or [{submit!r}, *arguments]
log = open(folder / f"{{name}}.log", "wb")
child = subprocess.Popen([sys.executable, "-c", run, str(folder / f"{{name}}.code"), *driver],
    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
(folder / f"{{name}}.pid").write_text(str(child.pid))
print(f"INFO Client: Submitted application {{name}}", flush=True)
"""


class StandInYarn:
    """What tests see of it.

    Attributes:
        address: Of the resource manager, as a Spark connection's extra names it.
        path: A folder with its `spark-submit`, to be put on the PATH.
        away: Whether the resource manager answers 503.
        forgets: Whether it knows no application.
    """

    def __init__(self, folder: Path, address: str) -> None:
        self.address = address
        self.path = folder / "bin"
        self.away = self.forgets = False
        self._folder = folder / "applications"
        self._folder.mkdir(parents=True)
        self.path.mkdir()
        self.drive()

    def drive(self, *command: str) -> None:
        """Have this run in place of Spark's driver from now on; without a command, Spark's own."""
        submit = str(Path(sys.executable).with_name("spark-submit"))
        script = _SUBMIT.format(
            python=sys.executable, folder=str(self._folder), driver=list(command), submit=submit
        )
        program = self.path / "spark-submit"
        program.write_text(script)
        program.chmod(0o755)

    @property
    def submitted(self) -> list[str]:
        """The applications there were, in their order."""
        return sorted(path.stem for path in self._folder.glob("*.arguments"))

    def arguments(self, name: str) -> list[str]:
        """Return the arguments of `spark-submit`."""
        return (self._folder / f"{name}.arguments").read_text().split("\0")

    def log(self, name: str) -> str:
        """Return what a driver wrote."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """Kill a driver."""
        with suppress(ProcessLookupError, FileNotFoundError):  # it has ended, or never began
            os.killpg(int((self._folder / f"{name}.pid").read_text()), signal.SIGKILL)
        (self._folder / f"{name}.code").write_text("137")

    def answer(self, name: str) -> tuple[int, dict[str, object]]:
        """Return what the resource manager says of an application."""
        if self.away:
            return 503, {}
        if self.forgets or not (self._folder / f"{name}.arguments").exists():
            return 404, {"RemoteException": {"exception": "NotFoundException"}}
        code = self._folder / f"{name}.code"
        if not code.exists():
            return 200, {
                "app": {"id": name, "state": "RUNNING", "finalStatus": "UNDEFINED", "diagnostics": ""}
            }
        ended = code.read_text()
        final = "SUCCEEDED" if ended == "0" else "FAILED"
        why = "" if ended == "0" else f"User application exited with status {ended}"
        return 200, {"app": {"id": name, "state": "FINISHED", "finalStatus": final, "diagnostics": why}}


@contextmanager
def stand_in_yarn(folder: Path) -> Iterator[StandInYarn]:
    """Run one."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            before, _, name = self.path.rpartition("/")
            code, document = yarn.answer(name) if before == "/ws/v1/cluster/apps" else (404, {})
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class' name
            pass

    server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
    yarn = StandInYarn(folder, f"http://{HOST}:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield yarn
    finally:
        for name in yarn.submitted:
            yarn.kill(name)
        server.shutdown()
        thread.join()
        server.server_close()
