"""Fixtures of the spool's contract suite: every test that asks for `spool` runs on each kind of place."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from airflow_provider_jmsjca import Destination, JmsMessage
from tests.internals.spool import ObjectPath, Row, SpoolBatch, SpoolPath
from tests.servers.azure import Azurite
from tests.servers.hadoop import Hdfs
from tests.servers.s3 import BUCKET, S3

ORDERS = Destination.queue("orders")
OpenBatch = Callable[..., SpoolBatch]


@pytest.fixture(params=["posix", "s3", "gs", "azurite", "hdfs"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> SpoolPath:
    """An empty spool."""
    if request.param == "posix":
        return tmp_path / "spool"
    if request.param in {"s3", "gs"}:
        s3: S3 = request.getfixturevalue("s3")
        options = s3.options() if request.param == "s3" else s3.google_options()
        root = f"{request.param}://{BUCKET}"
    else:
        server: Azurite | Hdfs = request.getfixturevalue(request.param)
        root, options = server.url, server.options()
    return ObjectPath.parse(f"{root}/{uuid.uuid4().hex}/jms spool", options)


@pytest.fixture
def open_batch(spool: SpoolPath) -> OpenBatch:
    def open_it(batch_id: str = "d~~r~~t~~-1", activation: str = "a") -> SpoolBatch:
        return SpoolBatch(spool, batch_id, source=str(ORDERS), activation=activation)

    return open_it


def rows(numbers: Iterable[int], size: int = 10) -> list[Row]:
    return [
        Row(JmsMessage.text("x" * size, message_id=f"ID:{number}", destination=ORDERS), 1_700_000_000_000_000)
        for number in numbers
    ]


@pytest.fixture
def store_environment(spool: SpoolPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials in the environment, where no connection says any."""
    if isinstance(spool, ObjectPath):
        for name, value in spool.bucket.options.items():
            monkeypatch.setenv(name.upper(), value)
