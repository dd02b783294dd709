"""`airflow jms attempts` and `airflow jms indoubt`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from airflow.cli import cli_parser

from tests.internals.core import Failure
from tests.internals.hooks import installed_store
from tests.internals.store import SqlStore

LONG = "orders, " + "x" * 300


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    """What a living process and a dead one have in hand, and what failed."""
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    opened = installed_store()
    now = datetime.now(UTC)
    opened.owners.heartbeat(now)
    dead = SqlStore(opened.database, where="gone/7")
    dead.attempts.begin("orders", ["m1", "m2"], now)
    dead.attempts.begin("orders", ["m1"], now)
    dead.attempts.failed("orders", {"m2": Failure(class_names=("ValueError",), message="[no] stock")})
    opened.attempts.begin(LONG, ["m3"], now)
    yield opened
    opened.owners.leave()
    opened.close()


def run(*arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", *arguments])
    parsed.func(parsed)


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
    capsys.readouterr()
    run(*arguments, "--output", "json")
    found: list[dict[str, str]] = json.loads(capsys.readouterr().out)
    return found


def test_attempts_are_listed_shown_and_reset(store: SqlStore, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {each["message"]: each["attempts"] for each in listed(capsys, "attempts", "list")}
    assert counts == {"m1": "2", "m2": "1", "m3": "1"}
    assert [each["message"] for each in listed(capsys, "attempts", "list", "--at-least", "2")] == ["m1"]
    (long,) = [each for each in listed(capsys, "attempts", "list") if each["message"] == "m3"]
    of_long = ("--activation", long["activation"])
    assert [each["message"] for each in listed(capsys, "attempts", "list", *of_long)] == ["m3"]
    assert len(listed(capsys, "attempts", "show", long["activation"], "m3")) == 1
    (entry,) = listed(capsys, "attempts", "show", "orders", "m2")
    assert (entry["where"], entry["exception"]) == ("gone/7", "ValueError: [no] stock")
    run("attempts", "show", "orders", "m2")
    assert "ValueError: [no] stock" in capsys.readouterr().out
    run("attempts", "show", "orders", "m2", "--output", "yaml")
    assert yaml.safe_load(capsys.readouterr().out)[0]["attempt"] == "1"
    run("attempts", "reset", *of_long)
    run("attempts", "reset", "--activation", "orders", "--message", "m1")
    run("attempts", "reset", "--all")
    assert capsys.readouterr().out == "Reset the counts of 1 message\n" * 3
    assert store.attempts.page() == []
    for arguments, said in {
        ("attempts", "reset"): "no messages selected; give a filter",
        ("attempts", "show", "orders", "m9"): "no attempt at message 'm9' of 'orders' is stored",
    }.items():
        with pytest.raises(SystemExit):
            run(*arguments)
        assert said in capsys.readouterr().err


def test_an_activation_is_found_by_its_name_without_the_broker(
    store: SqlStore, capsys: pytest.CaptureFixture[str]
) -> None:
    now = datetime.now(UTC)
    for place in ("stomp://one:1", "stomp://two:2"):
        store.attempts.begin(f"bills at {place}", ["m4"], now)
    store.attempts.begin("letters at stomp://one:1", ["m5"], now)
    assert [each["message"] for each in listed(capsys, "attempts", "list", "--activation", "letters")] == [
        "m5"
    ]
    assert len(listed(capsys, "attempts", "show", "letters", "m5")) == 1
    assert [each["message"] for each in listed(capsys, "indoubt", "list", "--activation", "letters")] == [
        "m5"
    ]
    run("attempts", "reset", "--activation", "letters")
    assert capsys.readouterr().out == "Reset the counts of 1 message\n"
    with pytest.raises(SystemExit):
        run("attempts", "reset", "--activation", "bills")
    said = capsys.readouterr().err
    assert "'bills': expected one of 'bills at stomp://one:1', 'bills at stomp://two:2'" in said
    run("attempts", "reset", "--activation", "bills at stomp://two:2")
    assert store.attempts.activations() >= {"orders", "bills at stomp://one:1"}
    assert "bills at stomp://two:2" not in store.attempts.activations()


def test_what_is_in_doubt_is_listed_and_reset_and_what_is_in_hand_left_alone_i9(
    store: SqlStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """I9: what is received and not settled can be seen."""
    states = {each["message"]: each["state"] for each in listed(capsys, "indoubt", "list")}
    assert states == {"m1": "in doubt", "m3": "in flight"}
    assert [each["message"] for each in listed(capsys, "indoubt", "list", "--state", "in doubt")] == ["m1"]
    assert listed(capsys, "indoubt", "list", "--activation", "bills") == []
    run("indoubt", "show", "orders", "m1")
    run("indoubt", "reset", "--activation", "orders")
    run("indoubt", "reset", "--all")
    said = capsys.readouterr().out
    assert "1 messages are no longer in doubt\n0 messages are no longer in doubt\n" in said
    assert [each["message"] for each in listed(capsys, "indoubt", "list")] == ["m3"]
    assert len(store.attempts.page("orders")) == 2, "the counts stay"
    with pytest.raises(SystemExit):
        run("indoubt", "reset")
    assert "no messages selected" in capsys.readouterr().err


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        (("attempts", "list", "--limit", "2"), 2),
        (("attempts", "list", "--limit", "1", "--after", "1"), 2),
        (("attempts", "list", "--limit", "3"), None),
        (("indoubt", "list", "--limit", "1"), 1),
        (("indoubt", "list", "--limit", "1", "--after", "1"), None),
        (("indoubt", "list", "--limit", "1", "--state", "in doubt"), None),
    ],
)
def test_a_list_says_that_it_goes_on(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], after: int | None
) -> None:
    run(*arguments, "--output", "json")
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)) <= int(arguments[3])
    assert (f"add --after {after} for the next" in shown.err) if after else ("more" not in shown.err)


@pytest.mark.parametrize("group", ["attempts", "indoubt"])
def test_all_and_an_id_are_not_both_meant(
    store: SqlStore, capsys: pytest.CaptureFixture[str], group: str
) -> None:
    with pytest.raises(SystemExit):
        run(group, "reset", "--all", "--message", "m1")
    assert "--all and --message m1 are both given; expected one of them" in capsys.readouterr().err
    assert len(store.attempts.page("orders")) == 2
    run(group, "reset", "--all", "--activation", "orders")
    assert " messages" in capsys.readouterr().out
