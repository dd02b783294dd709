"""What the pure core costs: configuration and selectors."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterator

from airflow_provider_jmsjca.core.configuration.layers import Layer
from airflow_provider_jmsjca.core.configuration.precedence import resolve
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.options import Level
from airflow_provider_jmsjca.core.selector import Selector

_REPEAT = 5
_NUMBER = 2_000


def report() -> Iterator[str]:
    """Yield a line for each measurement: the best of five, in microseconds, and its goal."""
    message = JmsMessage.text("x", properties={"region": "eu", "amount": 12, "kind": "order-new"})
    selector = Selector.parse("region = 'eu' AND amount BETWEEN 10 AND 20 AND kind LIKE 'order-%'")
    layers = (
        Layer(level=Level.CONNECTOR, fields={"options": "JMSJCA.idletimeout=30000\nJMSJCA.NoXA=true"}),
        Layer(
            level=Level.CONNECTION_FACTORY,
            fields={
                "connection_url": "stomp://a.example:61613,b.example:61613/?JMSJCA.concurrencymode=cc&x.y=1",
                "username": "app",
                "password": "secret",
            },
        ),
        Layer(
            level=Level.ACTIVATION,
            fields={"destination": "queue://orders", "message_selector": "region = 'eu'", "batch_size": 10},
        ),
    )
    yield _line("parse a URL with options and resolve three levels", lambda: resolve(layers), 200)
    yield _line("evaluate a selector of three terms", lambda: selector.matches(message), 20)


def _line(what: str, call: Callable[[], object], goal: float) -> str:
    best = min(timeit.repeat(call, repeat=_REPEAT, number=_NUMBER)) / _NUMBER * 1e6
    return f"  {best:7.1f} µs  {what} (goal: under {goal} µs)"
