"""What only HDFS can do to the spool."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import requests

from airflow_provider_jmsjca import ConfigurationError, Manifest, SpoolError, manifest_messages
from tests.contract.spool.conftest import ORDERS, rows
from tests.internals.spool import (
    MANIFEST,
    TEMPORARY_PREFIX,
    ObjectPath,
    SpoolBatch,
    WebHdfs,
    make_folder,
    message_key,
    names_in,
    path_for_spark,
    read_file,
    seal,
    uri_to_path,
    walk,
)
from tests.internals.spool import hdfs as module
from tests.servers.hadoop import Hdfs
from tests.servers.proxy import TcpProxy

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
UNREACHABLE_SECONDS = 30.0 if FULL else 2.0
NOBODY = ("127.0.0.1", 9)
Answer = Callable[[], requests.Response]


def place(server: Hdfs, **options: str) -> ObjectPath:
    return ObjectPath.parse(f"{server.url}/{uuid.uuid4().hex}/spool", {**server.options(), **options})


def open_batch(spool: ObjectPath) -> SpoolBatch:
    return SpoolBatch(spool, "b1", source=str(ORDERS), activation="a")


class _KilledError(BaseException):
    """Stands for the end of the process: nobody catches it, and what was open stays so."""


def beside(monkeypatch: pytest.MonkeyPatch, act: Callable[[str, Answer], requests.Response]) -> None:
    """Let `act` stand between client and HDFS: it gets what is asked, and a function that sends it.

    What is asked is `PUT CREATE` and the like of a name node, and `PUT` or `GET` of a data node.
    """
    real = requests.Session.request

    def request(self: requests.Session, method: str, url: str, **arguments: Any) -> requests.Response:
        asked = f"{method} {arguments.get('params', {}).get('op', '')}".strip()
        return act(asked, lambda: real(self, method, url, **arguments))

    monkeypatch.setattr(requests.Session, "request", request)


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
    hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    everything = [f"ID:{number}" for number in range(6)]
    for step in itertools.count(1, 1 if FULL else 5):
        spool = place(hdfs)
        acknowledged: list[str] = []
        asked: list[str] = []

        def dying(what: str, send: Answer) -> requests.Response:
            if what.startswith("GET"):
                return send()
            asked.append(what)  # noqa: B023 - called within the step alone
            if before and len(asked) == step:  # noqa: B023
                raise _KilledError
            answer = send()
            if len(asked) == step:  # noqa: B023
                raise _KilledError
            return answer

        with monkeypatch.context() as patch:
            beside(patch, dying)
            with contextlib.suppress(_KilledError):
                _write(spool, acknowledged)
        if len(asked) < step:
            break
        _write(spool, acknowledged)
        manifest = Manifest.read(spool / "b1" / MANIFEST)
        assert [stored.message.message_id for stored in manifest_messages(manifest)] == everything
        assert not [name for name in names_in(spool / "b1") if name.startswith(TEMPORARY_PREFIX)]
        with open_batch(spool) as again:
            assert again.manifest == manifest
    assert len(asked) > 18  # the batch's header, two segments, the end and the manifest take three each


def test_a_rename_whose_answer_was_lost_is_ours(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place(hdfs)
    lost: list[str] = []

    def losing(what: str, send: Answer) -> requests.Response:
        answer = send()
        if what == "PUT RENAME" and len(lost) < 2:
            lost.append(what)
            raise requests.ReadTimeout
        return answer

    beside(monkeypatch, losing)
    assert seal(folder / "a", b"first")
    assert len(lost) == 2
    assert not seal(folder / "a", b"second")
    assert (names_in(folder), read_file(folder / "a")) == (["a"], b"first")


def test_what_the_next_writer_removes_is_written_again(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place(hdfs)
    removed: list[str] = []

    def removing(what: str, send: Answer) -> requests.Response:
        if what == "PUT RENAME" and not removed:
            removed.append(what)
            folder.bucket.client.remove_temporary(folder.key)
        return send()

    beside(monkeypatch, removing)
    assert seal(folder / "a", b"content")
    assert (names_in(folder), read_file(folder / "a")) == (["a"], b"content")
    assert removed


def test_a_data_node_that_fails_is_not_asked_again(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place(hdfs)
    asked: list[str] = []

    def failing(what: str, send: Answer) -> requests.Response:
        asked.append(what)
        if what in {"PUT", "GET"} and asked.count(what) == 1:
            raise requests.ConnectionError
        return send()

    beside(monkeypatch, failing)
    assert seal(folder / "a", b"content")
    assert read_file(folder / "a") == b"content"
    # The only one there is: HDFS names no other, and is asked a third time without a word about it.
    assert [asked.count(each) for each in ("PUT CREATE", "PUT", "GET OPEN", "GET")] == [3, 2, 3, 2]


def test_a_name_node_that_is_not_reachable_for_a_while(hdfs: Hdfs) -> None:
    with TcpProxy(("127.0.0.1", hdfs.ports["http"])) as proxy:
        spool = place(hdfs, webhdfs_url=f"http://127.0.0.1:{proxy.port}")
        with open_batch(spool) as batch:
            batch.seal(rows([1]))
            there, proxy.target = proxy.target, NOBODY
            proxy.cut()
            back = threading.Timer(UNREACHABLE_SECONDS, setattr, (proxy, "target", there))
            back.start()
            batch.seal(rows([2]))
            assert batch.complete().rows == 2
            back.join()


def test_of_several_name_nodes_the_one_that_answers_serves(hdfs: Hdfs) -> None:
    spool = place(hdfs, webhdfs_url=f"http://127.0.0.1:9, {hdfs.endpoint}/")
    assert seal(spool / "a", b"content")
    assert read_file(spool / "a") == b"content"


def test_files_are_their_owner_s_alone(hdfs: Hdfs) -> None:
    spool = place(hdfs)
    with open_batch(spool) as batch:
        batch.seal(rows([1]))
        batch.complete()
    client = spool.bucket.client
    assert isinstance(client, WebHdfs)
    found = {each.path.key: each.is_folder for each in walk(spool)}
    assert len(found) > 5
    for key, is_folder in {**found, spool.key: True}.items():
        assert client._status(key)["permission"] == ("700" if is_folder else "600"), key


def test_another_user_is_refused(hdfs: Hdfs) -> None:
    spool = place(hdfs)
    make_folder(spool)
    other = ObjectPath.parse(str(spool), {**hdfs.options(), "hadoop_user_name": "other"})
    for act in (open_batch, lambda place: seal(place / "a", b"")):
        with pytest.raises(SpoolError, match="Permission denied: user=other"):
            act(other)


def test_a_delegation_token_takes_the_user_s_place_and_is_in_no_text(
    hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDFS looks at a token only where it has Kerberos: what is sent is looked at here."""
    sent: list[dict[str, str]] = []
    real = requests.Session.request

    def request(self: requests.Session, method: str, url: str, **arguments: Any) -> requests.Response:
        sent.append(arguments.get("params", {}))
        return real(self, method, url, **arguments)

    monkeypatch.setattr(requests.Session, "request", request)
    options = {"webhdfs_url": hdfs.endpoint, "webhdfs_delegation_token": "geheim"}
    spool = ObjectPath.parse(f"{hdfs.url}/{uuid.uuid4().hex}", options)
    with pytest.raises(SpoolError, match="Permission denied") as refused:
        seal(spool / "a", b"content")
    of_name_node = [(each["delegation"], each.get("user.name")) for each in sent if each]
    assert of_name_node == [("geheim", None)]
    assert "geheim" not in f"{refused.getrepr(style='short')} {spool!r} {spool.bucket.client!r}"
    sent.clear()
    monkeypatch.setattr(module, "RETRIED_FOR", timedelta(0))
    away = ObjectPath.parse(str(spool), {**options, "webhdfs_url": "http://127.0.0.1:9"})
    with pytest.raises(SpoolError, match=r"127\.0\.0\.1:9 doesn't answer") as unreachable:
        seal(away / "a", b"content")
    assert "geheim" not in str(unreachable.getrepr(style="short"))


def test_what_answers_and_is_no_webhdfs_is_named(hdfs: Hdfs) -> None:
    spool = place(hdfs, webhdfs_url=f"{hdfs.endpoint}/nowhere")
    with pytest.raises(SpoolError, match=r"answers 40\d, and not as WebHDFS does"):
        open_batch(spool)


def test_an_address_is_a_url() -> None:
    with pytest.raises(ConfigurationError, match="webhdfs_url is 'namenode:9870'; expected addresses"):
        _ = ObjectPath.parse("hdfs://nn:8020/x", {"webhdfs_url": "namenode:9870"}).bucket.client


def test_what_spark_calls_it() -> None:
    assert path_for_spark(uri_to_path("hdfs://nn:8020/jms~~spool/b{1}")) == "hdfs://nn:8020/jms~~spool/b{1}"


def test_a_token_of_the_environment_goes_only_to_the_name_nodes_that_issued_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEBHDFS_DELEGATION_TOKEN", "geheim")
    monkeypatch.delenv("WEBHDFS_URL", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        root = f"hdfs://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match="expected the addresses of the name nodes") as refused:
            Manifest.read(f"{root}/spool/batch/manifest.json")
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert "geheim" not in str(refused.value)
