"""A scripted STOMP peer: the broker's end of one connection, and a small broker made of such ends."""

from __future__ import annotations

import itertools
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

Headers: TypeAlias = dict[str, str]
Fault: TypeAlias = Callable[[socket.socket, bytes, threading.Event], None]
"""Is given the socket, what should be said now, and an event that is set at the end."""

_RESET = struct.pack("ii", 1, 0)
ACTIVEMQ = "ActiveMQ/6.3.1"


class Peer:
    """The broker's end of a connection; says what it is told to say.

    Attributes:
        frame: The text of the frame that was heard last.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = b""
        self.frame = ""

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hear(self, within: float | None = 5) -> tuple[str, Headers]:
        """Return the next frame's command and headers; heart-beats are skipped.

        What isn't UTF-8 is kept as surrogates.

        Raises:
            TimeoutError: None came for `within` seconds.
            ConnectionResetError: The client hung up.
        """
        self._socket.settimeout(within)
        while b"\0" not in self._buffer:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("the client hung up")
            self._buffer += data
        frame, _, self._buffer = self._buffer.partition(b"\0")
        self.frame = frame.lstrip(b"\n").decode(errors="surrogateescape")
        command, *lines = self.frame.partition("\n\n")[0].split("\n")
        return command, dict(line.split(":", 1) for line in lines)

    def hear_bytes(self) -> bytes:
        self._socket.settimeout(5)
        return self._buffer or self._socket.recv(65536)

    def receipt(self, headers: Headers) -> None:
        self.say(f"RECEIPT\nreceipt-id:{headers['receipt']}\n\n\0\n".encode())

    def close(self) -> None:
        self._socket.close()


class ScriptedBroker:
    """Plays a broker on a port of its own: confirms everything, and sends one message to every subscription.

    Args:
        fault: Goes wrong on the first connection; later ones meet a broker as it should be.
        step: Where it goes wrong: `accept`, `MESSAGE` (the delivery after a SUBSCRIBE), or a command of the
            client's.
        passcode: The only one that is let in, if there is one; the refusal repeats whatever it was told.
        new_messages: Each subscription is sent another message. Otherwise the same one comes again.
        most: Only the first so many subscriptions are sent a message; `None`: all are.
        redelivered: Later connections are told that the message was delivered before.
        server: What it greets as.

    Attributes:
        port: Where it listens, on loopback.
        connections: How many were accepted.
        connects: How many logged in.
        acknowledged: The ids of ACK frames that came, in committed transactions or without one.
        sent: How many SEND frames came in committed transactions or without one.
    """

    def __init__(
        self,
        fault: Fault | None = None,
        *,
        step: str = "",
        passcode: str | None = None,
        new_messages: bool = False,
        most: int | None = None,
        redelivered: bool = False,
        server: str = ACTIVEMQ,
    ) -> None:
        self._server = server
        self._fault = fault
        self._step = step
        self._passcode = passcode
        self._over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.connections = self.connects = self.sent = 0
        numbers: Iterator[int] = itertools.count(1) if new_messages else itertools.repeat(0)
        self._messages = itertools.islice(numbers, most)
        self._redelivered = redelivered
        self.acknowledged: list[str] = []
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def owns(self, thread: threading.Thread) -> bool:
        """Whether a thread is one of this broker's."""
        return thread in self._threads

    def drop(self) -> None:
        """End every connection."""
        for each in self._sockets:
            with suppress(OSError):  # closed by the other side already
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End every connection, and all threads."""
        self._over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join(10)
        self.drop()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(client)
            fault = self._fault if self.connections == 1 else None
            thread = threading.Thread(target=self._serve, args=(client, fault, self.connections), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket, fault: Fault | None, number: int) -> None:
        pending: dict[str, list[tuple[str, Headers]]] = {}
        peer = Peer(client)
        with client, suppress(OSError):
            if fault is not None and self._step == "accept":
                fault(client, b"", self._over)
            while True:
                command, headers = peer.hear(within=None)
                self._note(pending, command, headers)
                for step, answer in self._answers(command, headers, peer.frame, number):
                    if fault is not None and step == self._step:
                        fault(client, answer, self._over)
                    elif answer:
                        peer.say(answer)

    def _note(self, pending: dict[str, list[tuple[str, Headers]]], command: str, headers: Headers) -> None:
        if command in {"SEND", "ACK"}:
            pending.setdefault(headers.get("transaction", ""), []).append((command, headers))
        if command == "COMMIT" or "transaction" not in headers:
            for what, of in pending.pop(headers.get("transaction", ""), []):
                if what == "ACK":
                    self.acknowledged.append(of["id"])
                else:
                    self.sent += 1

    def _answers(
        self, command: str, headers: Headers, frame: str, number: int
    ) -> Iterator[tuple[str, bytes]]:
        if command == "CONNECT":
            if self._passcode not in {None, headers.get("passcode")}:
                who = f"{headers.get('login')} [{headers.get('passcode')}]"
                yield command, f"ERROR\nmessage:User or password invalid: {who}\n\n{frame}\0\n".encode()
                return
            self.connects += 1
            yield command, f"CONNECTED\nversion:1.2\nserver:{self._server}\nheart-beat:0,0\n\n\0\n".encode()
            return
        answer = f"RECEIPT\nreceipt-id:{headers['receipt']}\n\n\0\n" if "receipt" in headers else ""
        yield command, answer.encode()
        if command == "SUBSCRIBE":
            number_sent = next(self._messages, None)
            if number_sent is None:
                return
            name = f"m-{self.port}-{id(self)}-{number_sent}"
            head = (
                f"subscription:{headers['id']}\nmessage-id:{name}\nack:a{number}\n"
                f"destination:{headers['destination']}\n"
            )
            if not self._server.startswith("ActiveMQ"):  # elsewhere nothing else tells text from bytes
                head += "content-type:text/plain\n"
            if self._redelivered and number > 1:
                head += "redelivered:true\n"
            yield "MESSAGE", f"MESSAGE\n{head}\nhello\0\n".encode()


@contextmanager
def scripted_broker(
    fault: Fault | None = None,
    *,
    step: str = "",
    passcode: str | None = None,
    new_messages: bool = False,
    most: int | None = None,
    redelivered: bool = False,
    server: str = ACTIVEMQ,
) -> Iterator[ScriptedBroker]:
    """Start a scripted broker, and close it in the end; the arguments are those of `ScriptedBroker`."""
    broker = ScriptedBroker(
        fault,
        step=step,
        passcode=passcode,
        new_messages=new_messages,
        most=most,
        redelivered=redelivered,
        server=server,
    )
    try:
        yield broker
    finally:
        broker.close()


def cut(client: socket.socket, answer: bytes, over: threading.Event) -> None:
    """Close in the middle of the answer."""
    del over
    client.sendall(answer[: len(answer) // 2])
    client.shutdown(socket.SHUT_RDWR)


def reset(client: socket.socket, answer: bytes, over: threading.Event) -> None:
    """Reset the connection."""
    del answer, over
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    client.close()


def stall(client: socket.socket, answer: bytes, over: threading.Event) -> None:
    """Say nothing any more."""
    del client, answer
    over.wait(30)


def block(client: socket.socket, answer: bytes, over: threading.Event) -> None:
    """Send heart-beats, and neither read nor answer anything: the connection is blocked."""
    del answer
    while not over.wait(0.05):
        client.sendall(b"\n")


def half(client: socket.socket, answer: bytes, over: threading.Event) -> None:
    """Break off in the answer, and say nothing any more."""
    client.sendall(answer[: len(answer) // 2] or b"MESS")
    over.wait(30)


def saying(*lies: bytes) -> Fault:
    """Return what says something else, and goes on as if nothing were."""

    def lie(client: socket.socket, answer: bytes, over: threading.Event) -> None:
        del over
        client.sendall(b"".join(lies) + answer)

    return lie


def misstating(header: bytes, value: bytes | None) -> Fault:
    """Return what says the answer with another value of a header, or without that header."""
    line = b"" if value is None else b"%b:%b\n" % (header, value)
    pattern = re.compile(rb"(?<=\n)%b:[^\n]*\n" % re.escape(header))

    def misstate(client: socket.socket, answer: bytes, over: threading.Event) -> None:
        del over
        client.sendall(pattern.sub(lambda _: line, answer, count=1))

    return misstate


def flooding(start: bytes, more: bytes) -> Fault:
    """Return what says something that never ends."""

    def flood(client: socket.socket, answer: bytes, over: threading.Event) -> None:
        del answer
        client.sendall(start)
        while not over.is_set():
            client.sendall(more)

    return flood
