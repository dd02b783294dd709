from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.servers.ports import HOST
from tests.servers.proxy import TcpProxy


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends back what it gets."""
    with socket.create_server((HOST, 0)) as listener:
        threads: list[threading.Thread] = []

        def serve(connection: socket.socket) -> None:
            with connection:
                try:
                    while data := connection.recv(65536):
                        connection.sendall(data)
                except ConnectionResetError:
                    pass

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join(10)
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


def connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(proxy.address, timeout=10)


def read(connection: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        data = connection.recv(65536)
        assert data
        found += data
    return found


def test_forwards_both_ways(echo: tuple[str, int]) -> None:
    body = bytes(range(256)) * 4096
    with TcpProxy(echo) as proxy, connect(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=(body,))
        sender.start()
        assert read(client, len(body)) == body
        sender.join()


def test_end_of_input_passes_through(echo: tuple[str, int]) -> None:
    with TcpProxy(echo) as proxy, connect(proxy) as client:
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        assert read(client, 10) == b"last words"
        assert client.recv(1) == b""


def test_cut_resets_and_lets_new_ones_in(echo: tuple[str, int]) -> None:
    with TcpProxy(echo) as proxy:
        with connect(proxy) as client:
            client.sendall(b"ping")
            assert read(client, 4) == b"ping"
            assert proxy.connections == 1
            assert proxy.cut() == 1
            assert proxy.connections == 0
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        with connect(proxy) as client:
            client.sendall(b"pong")
            assert read(client, 4) == b"pong"


def test_cut_resets_a_connection_that_was_only_just_opened(echo: tuple[str, int]) -> None:
    with TcpProxy(echo) as proxy:
        for _ in range(20):
            with connect(proxy) as client:
                assert proxy.cut() == 1
                with pytest.raises(ConnectionResetError):
                    client.recv(1)


def test_frozen_proxy_accepts_and_forwards_nothing_until_thawed(echo: tuple[str, int]) -> None:
    with TcpProxy(echo) as proxy, connect(proxy) as old:
        old.sendall(b"warm")
        assert read(old, 4) == b"warm"
        proxy.freeze()
        with connect(proxy) as new:
            for client in (old, new):
                client.sendall(b"ping")
                client.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    client.recv(1)
            proxy.thaw()
            for client in (old, new):
                client.settimeout(10)
                assert read(client, 4) == b"ping"


def test_silent_connections_stay_so_until_thawed_and_new_ones_work(echo: tuple[str, int]) -> None:
    with TcpProxy(echo) as proxy, connect(proxy) as old:
        old.sendall(b"warm")
        assert read(old, 4) == b"warm"
        proxy.silence()
        old.sendall(b"late")
        with connect(proxy) as new:
            new.sendall(b"ping")
            assert read(new, 4) == b"ping"
        old.settimeout(0.3)
        with pytest.raises(TimeoutError):
            old.recv(1)
        proxy.thaw()
        old.settimeout(10)
        assert read(old, 4) == b"late"


def test_frozen_connections_can_be_cut(echo: tuple[str, int]) -> None:
    with TcpProxy(echo) as proxy, connect(proxy) as client:
        client.sendall(b"warm")
        assert read(client, 4) == b"warm"
        proxy.freeze()
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_unreachable_target_resets_the_client() -> None:
    with socket.create_server((HOST, 0)) as closed_soon:
        target = closed_soon.getsockname()
    # The reset may reach the client while it still connects.
    with TcpProxy(target) as proxy, pytest.raises(ConnectionResetError), connect(proxy) as client:
        client.recv(1)


def test_closed_proxy_refuses(echo: tuple[str, int]) -> None:
    proxy = TcpProxy(echo)
    proxy.close()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
