"""The life of a server, with a tiny one written in Python in the place of a broker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from tests.servers import __main__ as command_line
from tests.servers.errors import ServerError
from tests.servers.ports import HOST, accepts, free_ports, is_free
from tests.servers.server import Server

ROOT = Path(__file__).parents[3]
LISTEN = """
import signal, socket, subprocess, sys, time
print("hello", flush=True)
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
"""
WELL = LISTEN + "signal.pause()"
WITH_CHILD = (
    LISTEN + "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']); signal.pause()"
)
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)" + LISTEN + "while True: time.sleep(1)"
ENDS = "print('first'); print('cause of the end')"
SILENT = "import signal; print('thinking', flush=True); signal.pause()"


class Tiny(Server):
    name: ClassVar[str] = "tiny"
    port_names: ClassVar[tuple[str, ...]] = ("main",)
    program = WELL

    def _prepare(self) -> None:
        pass

    def _command(self) -> Sequence[str | Path]:
        return [sys.executable, "-c", self.program, str(self.ports["main"])]

    def _answers(self) -> bool:
        return True


class Late(Tiny):
    username = "somebody"
    password_file = Path("password")

    def address(self, *, tls: bool = False) -> tuple[str, int]:
        del tls
        return HOST, self.ports["main"]


Make = Callable[[str], Tiny]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Tiny] = []

    def make_one(program: str) -> Tiny:
        server = Tiny(tmp_path / f"tiny-{len(made)}")
        server.program = program
        made.append(server)
        return server

    yield make_one
    for server in made:
        server.kill()


def wait_for(condition: Callable[[], bool], deadline: float = 30) -> None:
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_free_ports_are_free_different_and_no_outgoing_ones() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port) and 12_000 <= port < 32_000 for port in ports)


def test_starts_stops_and_keeps_ports(make: Make) -> None:
    server = make(WELL)
    ports = dict(server.ports)
    assert not server.running
    server.start()
    assert server.running
    assert accepts(ports["main"])
    server.stop()
    assert not server.running
    assert not accepts(ports["main"])
    assert Tiny(server.folder).ports == ports
    server.start()
    assert accepts(ports["main"])


def test_stopping_twice_is_harmless(make: Make) -> None:
    server = make(WELL)
    server.start()
    server.stop()
    server.stop()
    assert not server.running


def test_kill_ends_the_whole_tree(make: Make) -> None:
    server = make(WITH_CHILD)
    server.start()
    assert server.pid is not None
    wait_for(lambda: bool(psutil.Process(server.pid).children()))
    (child,) = psutil.Process(server.pid).children()
    server.kill()
    assert not server.running
    assert gone(child.pid)


def test_start_that_ends_shows_exit_code_and_log(make: Make) -> None:
    server = make(ENDS)
    with pytest.raises(ServerError, match=r"tiny ended while starting \(exit code 0\)") as caught:
        server.start()
    assert ": cause of the end; more in " in str(caught.value)
    assert str(server.log_file) in str(caught.value)
    assert f"without {server.folder} it starts afresh" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_log_in_the_error_is_of_this_start_only(make: Make) -> None:
    server = make(WELL)
    server.start()
    server.stop()
    server.program = ENDS
    with pytest.raises(ServerError) as caught:
        server.start()
    assert "hello" not in str(caught.value)


def test_start_that_hangs_names_the_port_and_is_ended(make: Make) -> None:
    server = make(SILENT)
    with pytest.raises(ServerError, match=r"not ready within 1 s, no answer on port \d+ \(main\)") as caught:
        server.start(1)
    assert str(server.ports["main"]) in str(caught.value)
    assert not server.running


def test_port_in_use_is_one_line_that_names_it(make: Make) -> None:
    server = make(WELL)
    port = server.ports["main"]
    with (
        socket.create_server((HOST, port)),
        pytest.raises(ServerError, match=rf"^tiny: port {port} \(main\) on 127\.0\.0\.1 is in use") as caught,
    ):
        server.start()
    assert "\n" not in str(caught.value)
    assert not server.running


def test_second_start_is_refused(make: Make) -> None:
    server = make(WELL)
    server.start()
    with pytest.raises(ServerError, match="runs already"):
        server.start()
    assert server.running


def test_deaf_server_is_killed_and_that_is_said(make: Make) -> None:
    server = make(DEAF)
    server.start()
    with pytest.raises(ServerError, match=r"did not stop within 0\.3 s and was killed"):
        server.stop(0.3)
    assert not accepts(server.ports["main"])


def test_suspended_server_is_stopped_all_the_same(make: Make) -> None:
    server = make(WELL)
    server.start()
    server.suspend()
    assert server.pid is not None
    wait_for(lambda: psutil.Process(server.pid).status() == psutil.STATUS_STOPPED)
    assert server.running
    server.stop()
    assert not server.running


def test_another_process_adopts_and_stops_it(make: Make) -> None:
    server = make(WELL)
    server.start()
    other = Tiny(server.folder)
    assert other.adopt()
    other.stop()
    assert not server.running
    assert not Tiny(server.folder).adopt()


def test_up_waits_for_a_server_that_another_up_is_starting(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = make("import time\ntime.sleep(1)\n" + WELL)
    server.launch()
    other = Late(server.folder)
    monkeypatch.setattr(command_line, "_ours", lambda *_, **__: [other])

    assert command_line.main(["up"]) == 0

    assert accepts(server.ports["main"])
    assert "running" in capsys.readouterr().out
    server.stop()


def test_number_that_went_to_another_process_is_not_ours(make: Make) -> None:
    server = make(WELL)
    (server.folder / "processes.json").write_text(f'{{"server": [{os.getpid()}, 1.0]}}')
    assert not server.adopt()


def test_secrets_are_kept_and_for_us_alone(make: Make) -> None:
    server = make(WELL)
    assert len(server.password) >= 20
    assert Tiny(server.folder).password == server.password
    assert (server.folder / "password").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None], ids=["kill", "term", "exit"])
def test_server_dies_with_its_owner(tmp_path: Path, how: signal.Signals | None) -> None:
    script = f"""
import sys
from pathlib import Path
from tests.unit.servers.test_server import Tiny
server = Tiny(Path({str(tmp_path / "tiny")!r}))
server.start()
print(server.pid, flush=True)
sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert not gone(pid)
        if how is not None:
            owner.send_signal(how)
        owner.communicate(b"\n" if how is None else None)
    wait_for(lambda: gone(pid))


def test_released_server_outlives_its_owner(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from tests.unit.servers.test_server import Tiny
server = Tiny(Path({str(tmp_path / "tiny")!r}))
server.start()
server.release()
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
    server = Tiny(tmp_path / "tiny")
    assert server.adopt()
    server.stop()
