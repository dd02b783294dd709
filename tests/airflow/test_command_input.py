"""Unusual input, output formats and environments of `airflow jms`, on a broker in memory."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from airflow.cli import cli_parser

from airflow_provider_jmsjca import (
    ConnectionSettings,
    Destination,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    connect,
)
from tests.internals.hooks import installed_store
from tests.internals.store import LimboEntry

CONN_ID = "jms_test"


def run(*arguments: str) -> None:
    group, *others = arguments
    parsed = cli_parser.get_parser().parse_args(["jms", group, "--conn-id", CONN_ID, *others])
    parsed.func(parsed)


def run_nested(group: str, command: str, *arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", group, command, "--conn-id", CONN_ID, *arguments])
    parsed.func(parsed)


def run_any(*arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", *arguments])
    parsed.func(parsed)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command of a group that fails, and return its standard error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as raised:
        run_nested(*arguments)
    assert raised.value.code == 1
    return capsys.readouterr().err


@pytest.fixture
def messages(server: MemoryBroker) -> Sequence[JmsMessage]:
    """Messages on the queue `letters`, as browsed."""
    connection = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
    queue = Destination.queue("letters")
    bodies = ["1e5", "- name: redelivered\n  type: ''\n  value: forged", "a\x1b\u202e\tb\n\nc "]
    connection.send(Outgoing(destination=queue, message=JmsMessage.text(body)) for body in bodies)
    found = list(connection.browse(queue))
    connection.close()
    return found


def sent(server: MemoryBroker, queue: str = "sent") -> list[object]:
    connection = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
    found = [each.body for each in connection.browse(Destination.queue(queue))]
    connection.close()
    return found


@pytest.mark.parametrize("group", ["queues", "dlq"])
def test_a_shown_message_is_yaml_that_its_body_can_not_forge(
    group: str, messages: Sequence[JmsMessage], capsys: pytest.CaptureFixture[str]
) -> None:
    for each in messages:
        run_nested(group, "show", "letters", str(each.message_id), "--output", "yaml")
        printed = capsys.readouterr().out
        assert printed.isascii()
        rows = {row["name"]: row["value"] for row in yaml.safe_load(printed)}
        assert rows["body"] == each.body
        assert rows["redelivered"] == "False"


def test_a_body_of_10_mib_is_soon_shown_as_yaml(
    server: MemoryBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
    queue, body = Destination.queue("letters"), "ab cd\n" * (10 * 2**20 // 6)
    connection.send([Outgoing(destination=queue, message=JmsMessage.text(body))])
    [letter] = connection.browse(queue)
    connection.close()
    run_nested("queues", "show", "letters", str(letter.message_id), "--output", "yaml")
    assert len(capsys.readouterr().out) > len(body)


def test_plain_output_changes_no_text(
    messages: Sequence[JmsMessage], capsys: pytest.CaptureFixture[str]
) -> None:
    del messages
    run_nested("queues", "browse", "letters", "--limit", "1", "--output", "plain")
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "1e5"


def test_only_ends_of_lines_separate_messages(
    server: MemoryBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    bodies = ["a\u2028b\x85c", "d"]
    lines = [json.dumps(JmsMessage.text(each).to_json(), ensure_ascii=False) for each in bodies]
    file.write_bytes("\r\n".join(lines).encode())
    run("send", "sent", "--file", str(file), "--messages")
    assert sent(server) == bodies
    file.write_bytes("a\x0cb\x1cc\r\n\nd\u2028e\n".encode())
    run("send", "lines", "--file", str(file), "--lines")
    assert sent(server, "lines") == ["a\x0cb\x1cc", "", "d\u2028e"]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--body", "x", "--file", "y"], "--body and --file are both given"),
        (["--body", "x", "--lines", "--bytes"], "--bytes and --lines are both given"),
        (["--body", "x", "--lines", "--messages"], "--lines and --messages are both given"),
        (["--body", "", "--messages", "--priority", "0"], "--priority: not allowed with --messages"),
        (["--body", "", "--messages", "--property", "a=1"], "--property: not allowed with --messages"),
        (["--body", "", "--messages", "--non-persistent"], "--non-persistent: not allowed with --messages"),
        (["--file", ""], "--file is empty; expected the name of a file, or - for standard input"),
        (["--body", "\udcff"], "the body is not valid UTF-8: invalid byte at offset 0"),
    ],
)
def test_nothing_is_sent_without_an_option_that_was_given(
    arguments: list[str], fault: str, server: MemoryBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("send", "sent", *arguments)
    assert fault in capsys.readouterr().err
    assert sent(server) == []


def test_typed_bytes_are_sent_as_they_are(server: MemoryBroker, capsys: pytest.CaptureFixture[str]) -> None:
    run("send", "sent", "--body", "a\udcff", "--bytes")
    assert sent(server) == [b"a\xff"]
    run("send", "x\u202e\x1b", "--body", "a")
    assert capsys.readouterr().out.splitlines()[1:] == [r"1 message sent to queue://x\u202e\x1b"]


@pytest.mark.parametrize("command", ["move", "copy"])
def test_a_dry_run_onto_the_same_queue_is_refused_too(
    command: str, messages: Sequence[JmsMessage], capsys: pytest.CaptureFixture[str]
) -> None:
    del messages
    said = refused(capsys, "queues", command, "letters", "letters", "--all", "--dry-run")
    assert "queue 'letters' is both source and target" in said


@pytest.mark.usefixtures("messages")
def test_a_purge_that_nobody_confirms_deletes_nothing(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert "nothing was deleted; give --yes" in refused(capsys, "dlq", "purge", "letters")
    assert len(sent(server, "letters")) == 3


@pytest.mark.parametrize(
    ("editor", "said"),
    [
        ("vi 'x", 'the editor "vi \'x" is not a valid command: No closing quotation; set EDITOR'),
        (f"{sys.executable} -c 'import os, sys; os.remove(sys.argv[1])'", ""),
    ],
)
def test_an_editor_that_fails_leaves_no_file(  # noqa: PLR0917 - fixtures
    editor: str,
    said: str,
    messages: Sequence[JmsMessage],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VISUAL", " ")
    monkeypatch.setenv("EDITOR", editor)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    command = ("dlq", "edit", "letters", str(messages[0].message_id), "--to", "orders")
    if said:
        assert said in refused(capsys, *command)
    else:
        run_nested(*command)
        assert capsys.readouterr().out == "no change; the letter stays\n"
    assert list(tmp_path.iterdir()) == []


def test_the_text_of_an_editor_that_was_killed_is_kept(
    server: MemoryBroker,
    messages: Sequence[JmsMessage],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    killed = "import os, sys; open(sys.argv[1], 'w').write('half of it'); os.kill(os.getpid(), 9)"
    monkeypatch.setenv("VISUAL", f'{sys.executable} -c "{killed}"')
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    printed = refused(capsys, "dlq", "edit", "letters", str(messages[0].message_id), "--to", "orders")
    (file,) = tmp_path.iterdir()
    assert printed == (
        f"error: the editor was ended by signal 9; nothing was sent, and your text is in {file}\n"
    )
    assert file.read_text() == "half of it"
    assert len(sent(server, "letters")) == len(messages)


@pytest.mark.parametrize("option", ["--older-than", "--forget"])
@pytest.mark.parametrize("days", ["-1", "nan", "inf", "1e300", "x"])
def test_a_span_of_days_is_checked(option: str, days: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        cli_parser.get_parser().parse_args(["jms", "spool", "prune", f"{option}={days}"])
    assert raised.value.code == 2
    assert "expected a number of days" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    "arguments",
    [
        ("limbo", "list", "--destination", "\udcff"),
        ("limbo", "list", "--conn-id", "\udcff"),
        ("limbo", "purge", "--activation", "\udcff"),
        ("attempts", "show", "orders", "\udcff"),
        ("activations", "suspend", "\udcff", "--reason", "x"),
        ("activations", "suspend", "--all", "--reason", "\udcff"),
        ("queues", "browse", "\udcff"),
        ("dlq", "replay", "letters", "--to", "\udcff"),
        ("dlq", "replay", "letters", "--to", "orders", "--message", "1", "--message", "\udcff"),
        ("spool", "show", "\udcff"),
    ],
)
def test_arguments_that_are_not_utf_8_are_refused(
    arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        run_any(*arguments)
    assert raised.value.code == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.endswith(r": '\udcff' is not valid UTF-8" "\n")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a store with three messages in limbo, all to be sent to the queue `orders`."""
    path = tmp_path / "store.db"
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", f"sqlite:///{path}")
    with contextlib.closing(installed_store()) as opened:
        now = opened.limbo.now()
        opened.limbo.put(
            [
                LimboEntry(
                    jms_conn_id=CONN_ID,
                    destination="queue://orders",
                    message=JmsMessage.text("x"),
                    due_at=now + timedelta(hours=1),
                )
                for _ in range(3)
            ],
            now,
        )
    return path


@pytest.mark.parametrize("output", ["table", "json", "yaml", "plain"])
@pytest.mark.parametrize(
    "damage",
    ["destination = CAST(x'ff41' AS TEXT)", "due_at = 99999999999999999", "put_at = -99999999999999999"],
)
def test_a_damaged_row_of_limbo_hides_no_other(
    output: str, damage: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(f"UPDATE jms_limbo SET {damage} WHERE number = 2")  # noqa: S608
    run_any("limbo", "list", "--output", output)
    printed = capsys.readouterr().out
    assert printed.count("waiting") == 3
    assert ("udcffA" in printed) == ("ff41" in damage)
    run_any("limbo", "show", "2")
    assert json.loads(capsys.readouterr().out)["message"]["body"] == "x"


@pytest.mark.usefixtures("store")
def test_a_filter_of_limbo_distinguishes_upper_case_and_may_be_long(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with contextlib.closing(installed_store()) as opened:
        entry = LimboEntry(
            jms_conn_id=CONN_ID,
            destination="jmsjca://?name=queue://PRICES&x=1",
            message=JmsMessage.text("x"),
            due_at=opened.limbo.now(),
        )
        opened.limbo.put([entry], opened.limbo.now())
    for given, found in {"queue://prices": "0", "queue://PRICES": "1", "x" * 100_000: "0"}.items():
        run_any("limbo", "purge", "--destination", given)
        assert capsys.readouterr().out == f"{found} messages purged\n"


class FullDisk:
    """A disk on which only empty files can be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def mkstemp(self, **names: str) -> tuple[int, str]:
        file = self.folder / f"{names['prefix']}x{names['suffix']}"
        file.touch()
        return os.open("/dev/full", os.O_WRONLY), str(file)


@pytest.mark.parametrize("fault", ["full", "missing"])
def test_a_letter_is_not_edited_where_its_text_can_not_be_written(  # noqa: PLR0917 - fixtures
    fault: str,
    server: MemoryBroker,
    messages: Sequence[JmsMessage],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if fault == "full":
        monkeypatch.setattr("tempfile.mkstemp", FullDisk(tmp_path).mkstemp)
    else:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    printed = refused(capsys, "dlq", "edit", "letters", str(messages[0].message_id), "--to", "orders")
    why = f" in {tmp_path}: No space left on device" if fault == "full" else ": No such file or directory"
    assert printed == (
        f"error: the file for the editor cannot be written{why}; nothing was sent. "
        "Set TMPDIR to a folder with free space\n"
    )
    assert list(tmp_path.iterdir()) == []
    assert len(sent(server, "letters")) == len(messages)
