"""The library page does what it says: its blocks run one after the other, in memory."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    Activation,
    ConnectionSettings,
    Destination,
    JmsMessage,
    Outgoing,
    connect,
)
from airflow_provider_jmsjca.transports.memory import memory_broker as broker
from airflow_provider_jmsjca.transports.stomp import dialects
from tests.unit.engine.streaming import until

PAGE = Path(__file__).parents[3] / "docs" / "library.md"


def test_the_blocks_run_and_print_what_the_page_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dialects, "_known", known := dict(dialects.BY_SERVER))
    text = PAGE.read_text("utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        if 'scheme="stomp"' in block:
            compile(block, "library", "exec")  # a real broker: other tests have them
        else:
            exec(compile(block, "library", "exec"), names)  # noqa: S102 - our own page

    assert re.findall(r"prints `(.+?)`", text) == capsys.readouterr().out.splitlines()
    assert [message.body for message in broker("library").messages("archive")] == ["good"]
    assert [message.body for message in broker("library").messages("orders.dlq")] == ["bad"]
    assert known["Toy"].product == "toy"
    assert (tmp_path / "orders-store.db").exists()


def test_a_listener_needs_the_packages_that_the_page_installs_and_no_more() -> None:
    page = PAGE.read_text("utf-8")
    start = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:3:2])
    assert "listener.run" in start
    project = tomllib.loads((PAGE.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {re.split("[><]", each)[0] for each in project["dependencies"]}
    (installed,) = re.findall(r"^\$ pip install (pydantic.*)$", page, re.MULTILINE)
    missing = needed - {re.split("[><]", each)[0] for each in shlex.split(installed)}
    assert missing == {"apache-airflow", "httpx", "pyarrow", "sqlalchemy", "alembic"}
    modules = [each.removeprefix("apache-") for each in missing]
    blocked = f"import sys\nfor each in {modules!r} + ['pyspark']:\n    sys.modules[each] = None\n"
    ran = subprocess.run(
        [sys.executable, "-c", blocked + start], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == "1 5 1\n"


def test_a_coroutine_handles_messages_and_comes_to_its_end() -> None:
    page = PAGE.read_text("utf-8")
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "asyncio" in each]
    settings = ConnectionSettings(scheme="vm", hosts=(("coroutine", None),))
    activations: list[Activation] = []

    def activation(*arguments: Any, **named: Any) -> Activation:
        activations.append(Activation(*arguments, **named))
        return activations[-1]

    given = {"broker": settings, "Activation": activation, "threading": threading, "signal": signal}
    names: dict[str, Any] = dict(given)
    exec(compile(block, "library", "exec"), names)  # noqa: S102 - our own page
    connection = connect(settings)
    connection.send([Outgoing(destination=Destination.queue("orders"), message=JmsMessage.text("one"))])
    connection.close()
    of_the_page, begun = names["fetch"], list[str]()

    async def fetch(body: str) -> None:
        begun.append(body)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: activations[0].state != "Up")  # the listener stops meanwhile
        await of_the_page(body)

    names["fetch"] = fetch
    asyncio.run(names["service"]())

    assert begun == ["one"]
    assert names["fetched"] == ["one"]
    assert broker("coroutine").messages("orders") == []


def test_the_service_ends_when_it_is_told_to_and_says_how_it_is() -> None:
    page = PAGE.read_text("utf-8")
    (service,) = [
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def health" in block
    ]
    settings = ConnectionSettings(scheme="vm", hosts=(("service", None),))
    listener = Activation({"destination": "queue://orders"}, print, connection=settings)
    names: dict[str, Any] = {"listener": listener}
    exec(compile(service, "library", "exec"), names)  # noqa: S102 - our own page
    assert names["health"]() == {"ready": False, "state": "Down", "refused": ()}
    seen = []

    def tell() -> None:
        if listener.consuming.wait(10):
            seen.append(names["health"]())
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=tell).start()
    try:
        names["main"]()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [{"ready": True, "state": "Up", "refused": ()}]
    assert not listener.running
