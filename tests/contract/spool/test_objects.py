"""What only a store of objects can do to the spool."""

from __future__ import annotations

import contextlib
import errno
import http.client
import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest

from airflow_provider_jmsjca import ConfigurationError, Manifest, SpoolError, manifest_messages
from tests.contract.spool.conftest import ORDERS, rows
from tests.internals.spool import (
    MANIFEST,
    Cloud,
    DeduplicationWindow,
    ObjectPath,
    SpoolBatch,
    State,
    StoreError,
    batches,
    exists,
    message_key,
    names_in,
    objects,
    path_for_spark,
    pattern_for_spark,
    prune,
    read_file,
    seal,
    take_fence,
    uri_to_path,
    verify,
)
from tests.internals.spool import spool as module
from tests.servers.azure import Azurite
from tests.servers.ports import HOST
from tests.servers.proxy import TcpProxy
from tests.servers.s3 import BUCKET, S3

UNREACHABLE_SECONDS = 30.0 if os.environ.get("JMSJCA_CHAOS") == "full" else 2.0
NOBODY = ("127.0.0.1", 9)


def place(server: S3, *names: str, endpoint: str | None = None) -> ObjectPath:
    key = "/".join((BUCKET, uuid.uuid4().hex, *names))
    return ObjectPath.parse(f"s3://{key}", server.options(endpoint))


def open_batch(spool: ObjectPath) -> SpoolBatch:
    return SpoolBatch(spool, "b1", source="queue://orders", activation="a")


class _KilledError(BaseException):
    """Stands for the end of the process: nobody catches it, and what was open stays so."""


def _die_at(monkeypatch: pytest.MonkeyPatch, step: int, *, before: bool) -> list[str]:
    """Let the writer die at its n-th request that changes something; return what was asked."""
    asked: list[str] = []

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(place: ObjectPath, *arguments: bytes) -> Any:
            asked.append(place.name)
            if len(asked) == step and before:
                raise _KilledError
            result = real(place, *arguments)
            if len(asked) == step:
                raise _KilledError
            return result

        return call

    for name in ("create_object", "renew", "remove"):
        monkeypatch.setattr(objects, name, dying(getattr(objects, name)))
    return asked


def _write(spool: ObjectPath, acknowledged: list[str]) -> None:
    batch = open_batch(spool)
    for start in () if batch.manifest else (0, 3):
        new = [
            n for n in range(start, start + 3) if not batch.may_contain(message_key(f"ID:{n}", str(ORDERS)))
        ]
        if new:
            batch.add(rows(new[:1]))
            batch.seal(rows(new[1:]))
            acknowledged += [f"ID:{n}" for n in new]
    batch.complete()


@pytest.mark.parametrize("before", [True, False])
def test_killed_at_any_request_nothing_is_lost_or_stored_twice(
    s3: S3, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    everything = [f"ID:{number}" for number in range(6)]
    for step in itertools.count(1):
        spool = place(s3, "spool")
        acknowledged: list[str] = []
        with monkeypatch.context() as patch:
            asked = _die_at(patch, step, before=before)
            with contextlib.suppress(_KilledError):
                _write(spool, acknowledged)
        if len(asked) < step:
            break
        _write(spool, acknowledged)
        manifest = Manifest.read(spool / "b1" / MANIFEST)
        assert [stored.message.message_id for stored in manifest_messages(manifest)] == everything
        with open_batch(spool) as again:
            assert again.manifest == manifest
    assert step > 6  # the batch's header, its mark, two segments, the end, the manifest


BAD_NAMES = ("/x", "./x", "../x", "..", "a\x01b", "x\x7f", "b1//x", "b1/./x", "b1/../x", "b1/a\x01b", "b2//x")


def put_raw(server: S3 | Azurite, place: ObjectPath, name: str) -> None:
    """Create an object as a stranger may who has the right to write."""
    if isinstance(server, Azurite):
        assert server.put(f"{place.key}/{name}", b"x") == 201
        return
    authorization = "AWS4-HMAC-SHA256 Credential=any/20200101/us-east-1/s3/aws4_request, Signature=any"
    path = f"{BUCKET}/{quote(f'{place.key}/{name}', safe='')}"
    with contextlib.closing(http.client.HTTPConnection(HOST, server.ports["s3"], timeout=30)) as connection:
        connection.request("PUT", f"/{path}", body=b"x", headers={"Authorization": authorization})
        assert connection.getresponse().status == 200


@pytest.mark.parametrize("kind", ["s3", "gs", "azurite"])
def test_objects_with_names_of_no_file_are_skipped(
    kind: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """In the spool's folder and in those of batches: whoever left them there stops nothing."""
    server: S3 | Azurite = request.getfixturevalue("azurite" if kind == "azurite" else "s3")
    options = server.google_options() if isinstance(server, S3) and kind == "gs" else server.options()
    root = server.url if isinstance(server, Azurite) else f"{kind}://{BUCKET}"
    spool = ObjectPath.parse(f"{root}/{uuid.uuid4().hex}/jms spool", options)
    with open_batch(spool) as batch:
        batch.seal(rows([1]))
    with SpoolBatch(spool, "b2", source="queue://orders", activation="a") as other:
        other.seal(rows([2]))
        other.complete()
    for name in BAD_NAMES:
        if not (isinstance(server, Azurite) and "\x01" in name):  # Azurite then fails to write its XML
            put_raw(server, spool, name)
    assert {name for name in names_in(spool) if not name.startswith(".")} == {"b1", "b2"}
    assert [(each.batch_id, each.state) for each in batches(spool)] == [
        ("b1", State.UNFINISHED),
        ("b2", State.COLLECTED),
    ]
    assert {verify(each) for each in batches(spool)} == {None}
    with open_batch(spool) as batch:
        assert batch.rows == 1
        assert batch.may_contain(message_key("ID:2", str(ORDERS)))
        batch.seal(rows([3]))
        assert batch.complete().rows == 2
    found = prune(
        spool,
        older_than=timedelta(0),
        collected=True,
        horizon=DeduplicationWindow(count=0, age=timedelta(0)),
        now=time.time() + 60,
    )
    assert {each.batch_id for each in found.removed} == {"b1", "b2"}
    assert {each.state for each in batches(spool)} == {State.PRUNED}
    warnings = [each for each in caplog.messages if "skipping" in each]
    assert len(warnings) == len(set(warnings)) > 0
    assert all(each.isprintable() for each in warnings)


def test_a_fault_in_one_batch_stays_in_that_batch(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = place(s3, "spool")
    for name in ("b1", "b2"):
        with SpoolBatch(spool, name, source="queue://orders", activation="a") as batch:
            batch.seal(rows([1]))
            batch.complete()
    real = Cloud.walk

    def walk(cloud: Cloud, key: str) -> Any:
        if key.endswith("/b1"):
            raise StoreError(errno.EIO, "Encountered object with invalid path", key)
        return real(cloud, key)

    monkeypatch.setattr(Cloud, "walk", walk)
    one, two = batches(spool)
    assert (one.state, two.state) == (State.DAMAGED, State.COLLECTED)
    assert "invalid path" in str(verify(one))
    horizon = DeduplicationWindow(count=0, age=timedelta(0))
    pruned = prune(spool, older_than=timedelta(0), collected=True, horizon=horizon, now=time.time() + 60)
    assert [each.batch_id for each in pruned.removed] == ["b2"]
    assert [each.batch_id for each in pruned.kept] == ["b1"]


def test_a_store_without_conditional_put_is_refused(s3: S3) -> None:
    # Under another name of the host: each bucket is asked once.
    spool = place(s3, "unconditional", "spool", endpoint=f"http://localhost:{s3.ports['s3']}")
    with pytest.raises(ConfigurationError, match=r"spool_path s3://.*no conditional put \(If-None-Match"):
        open_batch(spool)
    assert names_in(spool) == [".conditional-put"]


def test_a_put_whose_answer_was_lost_is_ours(s3: S3) -> None:
    folder = place(s3, "answer-lost")
    assert seal(folder / "a", b"first")
    assert not seal(folder / "a", b"second")
    assert read_file(folder / "a") == b"first"


@pytest.mark.parametrize("kind", ["s3", "gs", "azurite"])
def test_whatever_answer_is_lost_the_request_is_repeated(kind: str, request: pytest.FixtureRequest) -> None:
    server: S3 | Azurite = request.getfixturevalue("azurite" if kind == "azurite" else "s3")
    (port,) = server.ports.values()
    for number in itertools.count(1):
        lost = _Nth(number)
        with TcpProxy(("127.0.0.1", port), lost) as proxy:
            _every_request(kind, server, proxy.port)
        if lost.asked < number:
            break
    assert number > 7  # create, renew, read, look, two ways to list, remove


class _Nth:
    """Asked about each piece that a client sends, it says yes at the n-th request."""

    def __init__(self, number: int) -> None:
        self.asked, self._number = 0, number

    def __call__(self, piece: bytes) -> bool:
        is_request = piece.startswith((b"PUT ", b"GET ", b"HEAD ", b"DELETE ", b"POST "))
        self.asked += is_request
        return is_request and self.asked == self._number


def _every_request(kind: str, server: S3 | Azurite, port: int) -> None:
    (real,) = server.ports.values()
    options = server.google_options() if isinstance(server, S3) and kind == "gs" else server.options()
    root = server.url if isinstance(server, Azurite) else f"{kind}://{BUCKET}"
    client = Cloud(root, {name: text.replace(f":{real}", f":{port}") for name, text in options.items()})
    folder = uuid.uuid4().hex
    key = f"{folder}/a"
    assert client.create(key, b"first")
    client.renew(key, b"second")
    assert client.fetch(key).read() == b"second"
    assert client.status(key).size == len(b"second")
    assert [found.key for found in (*client.entries(folder), *client.walk(folder))] == [key, key]
    client.remove(key)
    assert not client.walk(folder)


def test_an_attempt_whose_answer_was_lost_has_its_own_fence(s3: S3) -> None:
    folder = place(s3, "answer-lost")
    assert [take_fence(folder), take_fence(folder)] == [1, 2]


def test_a_store_that_is_not_reachable_for_a_while(s3: S3) -> None:
    with TcpProxy(("127.0.0.1", s3.ports["s3"])) as proxy:
        spool = place(s3, "spool", endpoint=f"http://127.0.0.1:{proxy.port}")
        with open_batch(spool) as batch:
            batch.seal(rows([1]))
            there, proxy.target = proxy.target, NOBODY
            proxy.cut()
            back = threading.Timer(UNREACHABLE_SECONDS, setattr, (proxy, "target", there))
            back.start()
            batch.seal(rows([2]))
            assert batch.complete().rows == 2
            back.join()


def test_a_batch_that_can_not_be_looked_into_is_named_all_the_same(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = place(s3, "spool")
    with open_batch(spool) as batch:
        batch.seal(rows([1]))

    def refused(segment: ObjectPath) -> int:
        raise StoreError(errno.EIO, "out of reach", str(segment))

    monkeypatch.setattr(module, "count_rows", refused)
    [found] = module.unfinished_batches(spool, "b2", "a")
    assert (found.batch_id, found.rows) == ("b1", None)


def test_credentials_are_in_no_text(s3: S3) -> None:
    options = {**s3.options(), "aws_secret_access_key": "geheim"}
    spool = ObjectPath.parse(f"s3://{BUCKET}/x", options)
    client = spool.bucket.client
    assert isinstance(client, Cloud)
    assert "geheim" not in f"{spool} {spool!r} {spool.bucket!r} {client.store!r}"


def test_a_bucket_that_is_not_there_is_named(s3: S3) -> None:
    spool = ObjectPath.parse("s3://nowhere/spool", s3.options())
    with pytest.raises(SpoolError, match=r"s3://nowhere/spool.*no such object or bucket"):
        open_batch(spool)
    assert not exists(spool / "a")


@pytest.mark.parametrize(
    "uri", ["s3://", "s3:///a", "s3://b/a//c", "s3://b/../c", "s3://b/a?x=1", "hdfs:///a"]
)
def test_what_names_no_object(uri: str) -> None:
    with pytest.raises(SpoolError, match=r"expected|can't be in it"):
        uri_to_path(uri)


def test_what_spark_calls_it() -> None:
    assert path_for_spark(uri_to_path("s3://bucket/jms~~spool/b{1}")) == "s3a://bucket/jms~~spool/b{1}"
    assert pattern_for_spark(uri_to_path("s3://bucket/b{1}")) == r"s3a://bucket/b\{1\}"
    assert path_for_spark(uri_to_path("abfs://c@account.dfs.core.windows.net/x")) == (
        "abfss://c@account.dfs.core.windows.net/x"
    )
