"""The functions that one message enters, from the bytes of the broker to its acknowledgement.

    python -m tests.docs.walks [direct|decided|dead-letter]

prints a line for each walk, or the calls of one walk in order. `docs/architecture.md` shows the lines.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from airflow_provider_jmsjca import ActivationSpec, ConnectionSettings
from airflow_provider_jmsjca.engine.activations.activation import Activation
from tests.servers.stomp_peer import ScriptedBroker

PACKAGE: Final = Path(__file__).parents[2] / "airflow_provider_jmsjca"
WITHIN: Final = 60
WALKS: Final = ("direct", "decided", "dead-letter")
_NUMBERS = {"direct": 3, "decided": 3, "dead-letter": 1}


@dataclass
class Walk:
    """Notes the functions of the package that other threads enter while `on` is set.

    Attributes:
        on: Whether to note them.
        calls: The file and the function of each call, in order.
    """

    on: bool = False
    calls: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if self.on and event == "call" and code.co_filename.startswith(str(PACKAGE)):
            self.calls.append((Path(code.co_filename).relative_to(PACKAGE).as_posix(), code.co_qualname))

    @property
    def files(self) -> list[str]:
        """The files, in the order of the first time."""
        return list(dict.fromkeys(file for file, _ in self.calls))

    @property
    def functions(self) -> int:
        """Number of different functions."""
        return len(set(self.calls))

    @property
    def changes(self) -> int:
        """How often the next call is in another file."""
        return sum(1 for one, other in zip(self.calls, self.calls[1:], strict=False) if one[0] != other[0])

    def __str__(self) -> str:
        return f"{len(self.files)} | {self.functions} | {len(self.calls)} | {self.changes}"


@contextmanager
def _profiled(walk: Walk) -> Iterator[None]:
    before = threading.getprofile()
    threading.setprofile(walk)
    try:
        yield
    finally:
        threading.setprofile(before)


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not happen in time")
        time.sleep(0.001)


def _fail(_: object) -> None:
    raise ValueError("no stock")


def follow(kind: str, mode: str | None = None) -> Walk:
    """Let a message take a walk, in threads of a listener, and return it.

    The first message over a connection also does work that no other does: for `direct` and `decided`, the
    shorter walk of the second and the third counts.

    Args:
        kind: One of `WALKS`.
        mode: The concurrency mode; `None`: serial for `direct`, otherwise cc.
    """
    subscribed = threading.Event()
    sends = [threading.Event() for _ in range(_NUMBERS[kind])]
    flag = b"redelivered:true\n" if kind == "decided" else b""

    def wait_and_send(client: Any, answer: bytes, _: threading.Event) -> None:
        def later() -> None:
            for send in sends:
                if send.wait(WITHIN):
                    client.sendall(answer.replace(b"MESSAGE\n", b"MESSAGE\n" + flag))

        threading.Thread(target=later).start()
        subscribed.set()

    peer = ScriptedBroker(wait_and_send, step="MESSAGE")
    fails = kind == "dead-letter"
    activation = Activation(
        ActivationSpec(
            destination="queue://q",
            concurrency_mode=mode or ("serial" if kind == "direct" else "cc"),
            **({"redelivery_handling": "1:move(queue:$.dlq)"} if fails else {}),
        ),
        _fail if fails else lambda _: None,
        connection=ConnectionSettings(scheme="stomp", hosts=(("127.0.0.1", peer.port),)),
    )
    walk, walks = Walk(), []
    with _profiled(walk):
        try:
            activation.start()
            assert subscribed.wait(WITHIN)
            _until(lambda: activation.ready)
            for number, send in enumerate(sends, 1):
                walk.calls, walk.on = [], True
                send.set()
                if fails:
                    _until(lambda: activation.counts.moved == 1)
                else:
                    _until(lambda already=number: len(peer.acknowledged) == already)  # type: ignore[misc]
                walk.on = False
                walks.append(Walk(calls=walk.calls))
        finally:
            activation.stop()
            peer.close()
    return min(walks[-2:], key=lambda one: one.functions)


def main() -> None:
    """Print the walks that the arguments ask for."""
    if len(sys.argv) > 1:
        for file, function in follow(sys.argv[1]).calls:
            print(f"{file:45}{function}")
        return
    print("| walk | files | functions | calls | changes of file |\n|---|---|---|---|---|")
    for kind in WALKS:
        print(f"| {kind} | {follow(kind)} |")


if __name__ == "__main__":
    main()
