"""A STOMP server of a few lines that knows one password, and repeats in errors whatever it is told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class StompPeer:
    """Accepts connections with the right passcode; sends one message to every subscription.

    Attributes:
        port: Where it listens.
        connects: How many logged in.
    """

    def __init__(self, passcode: str) -> None:
        self._passcode = passcode
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.connects = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def drop(self) -> None:
        """End every connection."""
        while self._open:
            with suppress(OSError):  # closed by the other side already
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._open:
            connection.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            serving = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(serving)
            serving.start()

    def _serve(self, connection: socket.socket) -> None:
        buffer = b""
        with connection:
            while True:
                try:
                    data = connection.recv(65536)
                except OSError:
                    return
                if not data:
                    return
                buffer += data
                while b"\0" in buffer:
                    frame, _, buffer = buffer.partition(b"\0")
                    try:
                        self._answer(connection, frame.lstrip(b"\n").decode())
                    except OSError:
                        return

    def _answer(self, connection: socket.socket, frame: str) -> None:
        command, *lines = frame.partition("\n\n")[0].split("\n")
        headers = dict(line.split(":", 1) for line in lines if ":" in line)

        def say(text: str) -> None:
            connection.sendall(text.encode() + b"\0\n")

        if command in {"CONNECT", "STOMP"}:
            if headers.get("passcode") != self._passcode:
                who = f"{headers.get('login')} [{headers.get('passcode')}]"
                say(f"ERROR\nmessage:User or password invalid: {who}\n\n{frame}")
                return
            self.connects += 1
            self._open.append(connection)
            say("CONNECTED\nversion:1.2\nserver:ActiveMQ/6.3.1\nheart-beat:0,0\n\n")
        elif "receipt" in headers:
            say(f"RECEIPT\nreceipt-id:{headers['receipt']}\n\n")
        if command == "SUBSCRIBE":
            say(
                f"MESSAGE\nsubscription:{headers['id']}\nmessage-id:m-{self.connects}\nack:a-{self.connects}\n"
                f"destination:{headers['destination']}\n\nhello"
            )


@contextmanager
def stomp_peer(passcode: str) -> Iterator[StompPeer]:
    peer = StompPeer(passcode)
    try:
        yield peer
    finally:
        peer.close()
