"""`airflow jms dlq list|show --rejects`: rejected rows of Spark batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.cli import cli_parser

from airflow_provider_jmsjca import JmsMessage
from tests.airflow.conftest import Publish
from tests.internals.spark import Reject
from tests.internals.spool import Done, Row, SpoolBatch, take_fence
from tests.internals.transports import MemoryAdministration
from tests.unit.spool.batches import write_rejects

HOSTILE = "\x1b[2Jred\x9b31m \u202eevil <b>x</b> [bold]\nnext"


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """A spool with one batch, of which the second row was rejected."""
    with SpoolBatch(tmp_path, "b1", source=f"queue://{HOSTILE}", activation="a") as batch:
        batch.seal(
            [
                Row(JmsMessage.text(f"{n}{HOSTILE}", {"h": HOSTILE}), 1_700_000_000_000_000 + n)
                for n in range(2)
            ]
        )
        manifest = batch.complete()
    take_fence(batch.folder)
    assert isinstance(batch.folder, Path)
    reject = Reject(segment=0, position=1, exception_class="ValueError", exception_message=HOSTILE)
    Done(
        batch_id="b1",
        fence=1,
        rows=manifest.rows,
        stored={"/t": 1},
        rejected=1,
        rejects=(write_rejects(batch.folder, 1, 0, [reject]),),
        finished="2026-01-01",
    ).create(batch.folder)
    return tmp_path


def run(spool: Path, *arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", "dlq", *arguments, "--spool-path", str(spool)])
    parsed.func(parsed)


def test_a_list_without_a_queue_shows_what_it_can_and_names_the_rest(
    spool: Path,
    tmp_path: Path,
    publish: Publish,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish("a", "b", to="orders.dlq")
    publish("c", to="orders")
    command = ("list", "--conn-id", "jms_test")
    run(spool, *command, "--output", "json")
    found = json.loads(capsys.readouterr().out)
    assert [(row["count"], row["queue"], row["batch"]) for row in found] == [
        ("2", "orders.dlq", ""),
        ("1", "", "b1"),
    ]
    run(tmp_path / "none", *command)
    shown = capsys.readouterr()
    assert "orders.dlq" in shown.out
    assert "No data found" not in shown.out
    [note] = shown.err.splitlines()
    assert note.startswith("note: rejected rows of Spark batches are not listed: ")
    assert "no such spool; the first batch creates it" in note
    run(spool, "list", "--conn-id", "jms_unknown")
    [note] = capsys.readouterr().err.splitlines()
    assert note.startswith("note: the dead-letter queues of connection 'jms_unknown' are not listed: ")
    assert note.endswith("; --conn-id names another connection")
    with pytest.raises(SystemExit):
        run(tmp_path / "none", "list", "--conn-id", "jms_unknown")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert [line.partition(":")[0] for line in shown.err.splitlines()] == ["error", "error"]
    # Browsing has a side effect: the number is all that is shown.
    monkeypatch.setattr(MemoryAdministration, "browse_note", "Browsing marks messages as redelivered.")
    run(spool, *command, "--output", "json")
    shown = capsys.readouterr()
    unread, _ = json.loads(shown.out)
    assert (unread["count"], unread["queue"], unread["reason"]) == ("2", "orders.dlq", "")
    assert (
        "note: orders.dlq was not browsed: Browsing marks messages as redelivered. To read it anyway: "
        "airflow jms dlq list --conn-id jms_test orders.dlq"
    ) in shown.err


def test_a_look_at_a_queue_that_was_named_says_its_side_effect_before_it(
    publish: Publish, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish('{"id": 1}', to="orders.dlq")
    said = "Browsing marks messages as redelivered."
    monkeypatch.setattr(MemoryAdministration, "browse_note", said)
    browse, before = MemoryAdministration.browse, list[str]()

    def looked_at(self: Any, *arguments: Any, **options: Any) -> Any:
        before.append(capsys.readouterr().err)
        return browse(self, *arguments, **options)

    monkeypatch.setattr(MemoryAdministration, "browse", looked_at)

    def jms(*arguments: str) -> str:
        before.clear()
        parsed = cli_parser.get_parser().parse_args(["jms", *arguments, "--conn-id", "jms_test"])
        parsed.func(parsed)
        after = capsys.readouterr()
        assert before[0] == f"note: {said}\n"
        assert said not in "".join(before[1:]) + after.err  # once
        return after.out

    [row] = json.loads(jms("dlq", "list", "orders.dlq", "--output", "json"))
    for group in ("dlq", "queues"):
        assert '"id": 1' in jms(group, "show", "orders.dlq", row["example"])
    assert '"id": 1' in jms("queues", "browse", "orders.dlq")
    assert "id " in jms("schema", "orders.dlq")


def test_rejected_rows_are_listed_and_shown(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(spool, "list", "--output", "json")
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["count"], row["batch"], row["row"]) == ("1", "b1", "0/1")
    assert row["reason"].startswith("ValueError: ")
    run(spool, "show", "b1", "0/1", "--rejects", "--output", "json")
    assert json.loads(capsys.readouterr().out)["body"] == f"1{HOSTILE}"
    for output in ("table", "plain"):
        for command in (["list"], ["show", "b1", "0/1", "--rejects"]):
            run(spool, *command, "--output", output)
            shown = capsys.readouterr().out
            assert not set(shown) & set("\x1b\x9b\u202e")
            assert "ValueError" in shown
    with pytest.raises(SystemExit):
        run(spool, "show", "b1", "0/0", "--rejects")
    assert "row 0/0 of batch 'b1' was not rejected" in capsys.readouterr().err
