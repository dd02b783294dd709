"""A service that answers requests, for tasks that wait for an answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from airflow_provider_jmsjca import JmsHook, JmsMessage, Outgoing

Answer = Callable[[JmsMessage], JmsMessage | None]


def copied(request: JmsMessage) -> JmsMessage:
    return JmsMessage.text(f"answer to {request.body}")


@contextlib.contextmanager
def service(
    answer: Answer = copied, *, conn_id: str = "jms_test", queue: str = "ask"
) -> Iterator[list[JmsMessage]]:
    """Answer requests meanwhile; yields those that came."""
    asked: list[JmsMessage] = []
    over = threading.Event()

    def serve() -> None:
        with JmsHook(conn_id).get_conn() as connection, connection.session() as session:
            while not over.is_set():
                request = session.receive(f"queue://{queue}", timeout=0.1)
                if request is None:
                    continue
                asked.append(request)
                reply = answer(request)
                if reply is not None:
                    assert request.reply_to is not None
                    reply = replace(reply, correlation_id=reply.correlation_id or request.correlation_id)
                    session.send_all([Outgoing(destination=request.reply_to, message=reply)])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield asked
    finally:
        over.set()
        thread.join()
