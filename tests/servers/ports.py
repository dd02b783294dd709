"""Loopback ports: picked once for each server, kept in its folder."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterable
from pathlib import Path

from tests.servers.errors import ServerError

HOST = "127.0.0.1"
# Below the range the system takes for outgoing connections. A client that tries again and again to reach a
# stopped server could otherwise be given that very port as its own, connect to itself and keep the port.
_CHOICE = range(12_000, 32_000)


def is_free(port: int) -> bool:
    """Return whether a server could listen on the loopback port now."""
    with socket.socket() as probe:
        # As servers do: connections in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def accepts(port: int, *, timeout: float = 1.0) -> bool:
    """Return whether somebody accepts connections on the loopback port."""
    try:
        socket.create_connection((HOST, port), timeout=timeout).close()
    except OSError:
        return False
    return True


def free_ports(count: int, *, avoid: Iterable[int] = ()) -> list[int]:
    """Return free loopback ports, all different."""
    avoided = set(avoid)
    found: list[int] = []
    for port in random.sample(_CHOICE, len(_CHOICE)):
        if len(found) == count:
            break
        if port not in avoided and is_free(port):
            found.append(port)
    return found


def keep_ports(names: Iterable[str], file: Path) -> dict[str, int]:
    """Return the port of each name: the ones kept in the file, or fresh ones kept there from now on."""
    wanted = tuple(names)
    if file.exists():
        kept: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
        if set(kept) == set(wanted):
            return kept
    ports = dict(zip(wanted, free_ports(len(wanted)), strict=True))
    file.write_text(json.dumps(ports), encoding="utf-8")
    return ports


def require_free(server: str, ports: dict[str, int], file: Path) -> None:
    """Check that nobody listens on the ports.

    Raises:
        ServerError: Ports in use; every one is named.
    """
    taken = [f"{port} ({name})" for name, port in ports.items() if not is_free(port)]
    if taken:
        raise ServerError(
            f"{server}: port {', '.join(taken)} on {HOST} is in use; end whoever uses it, "
            f"or delete {file} to get other ports"
        )
