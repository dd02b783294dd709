"""A TCP proxy in front of a server, to cut and to freeze connections at will."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.servers.ports import HOST

_CHUNK = 65536
# How soon a thread notices that its connection was cut, in seconds.
_TICK = 0.05
# Closing with a linger time of zero sends RST, as after a crash.
_RESET = struct.pack("ii", 1, 0)


class TcpProxy:
    """Forwards loopback connections to an address until told otherwise. Use it as a context manager.

    Args:
        target: Host and port to forward to; read anew for each connection, so it may be set later.
        loses_answer: Asked about each piece that a client sends. After `True` the connection is cut as soon
            as the server has answered, and the client never sees the answer.
    """

    def __init__(
        self, target: tuple[str, int], loses_answer: Callable[[bytes], bool] = lambda _: False
    ) -> None:
        self.target = target
        self._loses_answer = loses_answer
        self._gate = _Gate()
        self._silent: list[_Gate] = []
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._tunnels: set[_Tunnel] = set()
        self._listener = socket.create_server((HOST, 0))
        self._listener.setblocking(False)
        self.address: tuple[str, int] = (HOST, self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.address[1]

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        with self._lock:
            self._accept_pending()
            return len(self._tunnels)

    def cut(self, most: int | None = None) -> int:
        """Reset every connection on both sides, and return how many there were. New ones are accepted.

        With `most` it resets any so many.

        A client whose `connect` has returned is among them, even if nothing was forwarded for it yet.
        """
        with self._lock:
            self._accept_pending()
            tunnels = list(self._tunnels)[:most]
        for tunnel in tunnels:
            tunnel.cut.set()
        for tunnel in tunnels:
            tunnel.join(10)
        return len(tunnels)

    def freeze(self) -> None:
        """Keep connections open and accept new ones, but forward nothing."""
        with self._lock:
            self._gate.shut()

    def silence(self) -> None:
        """Keep the connections there are open, but forward nothing over them; new ones work."""
        with self._lock:
            self._gate.shut()
            self._silent.append(self._gate)
            self._gate = _Gate()

    def thaw(self) -> None:
        """Forward again, also over silent connections, and what was sent meanwhile included."""
        with self._lock:
            gates, self._silent = [self._gate, *self._silent], []
        for gate in gates:
            gate.open()

    def close(self) -> None:
        """Stop listening and reset what is open."""
        self._closed.set()
        self._thread.join(10)
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with self._listener:
            pending = select.poll()
            pending.register(self._listener, select.POLLIN)
            while not self._closed.is_set():
                if pending.poll(_TICK * 1000):
                    with self._lock:
                        self._accept_pending()

    def _accept_pending(self) -> None:
        """Start a tunnel for each connection that the kernel has accepted; the caller holds the lock."""
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except BlockingIOError:
                return
            tunnel = _Tunnel(client, self.target, self._gate, self._forget, self._loses_answer)
            self._tunnels.add(tunnel)
            tunnel.start()

    def _forget(self, tunnel: _Tunnel) -> None:
        with self._lock:
            self._tunnels.discard(tunnel)


class _Gate:
    """Open or shut. Once `shut` has returned, nothing is received any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = threading.Event()
        self._is_open.set()

    def open(self) -> None:
        self._is_open.set()

    def shut(self) -> None:
        with self._lock:
            self._is_open.clear()

    def wait(self, timeout: float) -> bool:
        return self._is_open.wait(timeout)

    def receive(self, source: socket.socket) -> bytes | None:
        """Receive what is there; `None` when shut."""
        with self._lock:
            return source.recv(_CHUNK) if self._is_open.is_set() else None


class _Tunnel(threading.Thread):
    """One connection. Only its own threads touch the two sockets, so that closing them is not a race."""

    def __init__(
        self,
        client: socket.socket,
        target: tuple[str, int],
        gate: _Gate,
        ended: Callable[[_Tunnel], None],
        loses_answer: Callable[[bytes], bool],
    ) -> None:
        super().__init__(name=f"tunnel-{client.fileno()}", daemon=True)
        self.cut = threading.Event()
        self._client = client
        self._target = target
        self._gate = gate
        self._ended = ended
        self._loses_answer = loses_answer
        self._losing = False

    def run(self) -> None:
        with self._client:
            self._forward()
            if self.cut.is_set():
                _reset_on_close(self._client)
        self._ended(self)

    def _forward(self) -> None:
        while not self._gate.wait(_TICK):
            if self.cut.is_set():
                return
        try:
            server = socket.create_connection(self._target, timeout=10)
        except OSError:
            self.cut.set()
            return
        with server:
            server.settimeout(None)
            back = threading.Thread(target=self._pump, args=(server, self._client), daemon=True)
            back.start()
            self._pump(self._client, server)
            back.join()
            if self.cut.is_set():
                _reset_on_close(server)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        readable, writable = select.poll(), select.poll()
        readable.register(source, select.POLLIN)
        writable.register(sink, select.POLLOUT)
        try:
            while not self.cut.is_set():
                if not self._gate.wait(_TICK) or not readable.poll(_TICK * 1000):
                    continue
                received = self._gate.receive(source)
                if received is None:
                    continue
                if source is self._client:
                    self._losing = self._losing or self._loses_answer(received)
                elif self._losing:
                    self.cut.set()
                data = memoryview(received)
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                while data and not self.cut.is_set():
                    if writable.poll(_TICK * 1000):
                        data = data[sink.send(data, socket.MSG_DONTWAIT) :]
        except OSError:
            # One side is gone: so is the other.
            self.cut.set()


def _reset_on_close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
