"""Dead letters that the broker refuses, and what they must not tell."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.dead_letters import original_of
from tests.unit.engine.listening import MODES, QUICK, Site, every_mode, refusing_at_commit

LONG = timedelta(seconds=20)
LEFT_OUT = "JMS_Sun_JMSJCA_LeftOut"
# A message that is lost with the connection of another comes again, and is no dead letter for that.
ONLY_POISON: dict[str, object] = {
    "redelivery_handling": "1:5",
    "non_retryable": ["ValueError"],
    "dead_letter_destination": "queue://dlq",
}


@pytest.fixture
def site() -> Site:
    return Site()


@every_mode
@pytest.mark.parametrize("closing", [False, True], ids=["said", "closed"])
@pytest.mark.parametrize("length", [9_500, 300_000], ids=["shortened", "left out"])
def test_a_dead_letter_refused_at_the_commit_goes_with_a_part(
    site: Site, mode: dict[str, object], length: int, *, closing: bool
) -> None:
    """Those behind it go on, and nothing stays; once such a message was tried again for ever."""
    site.send("first")
    site.send("bad", huge="x" * length)
    site.send("last")

    def handle(delivery: object) -> None:
        if getattr(delivery, "body", None) == "bad":
            raise ValueError("no stock")

    listener = site.activation(
        handle,
        connect_with=lambda: refusing_at_commit(site.broker, site.settings, 9_200, closing=closing),
        **ONLY_POISON,
        **mode,
    )
    counts = listener.run(idle_for=QUICK, failure_timeout=LONG, run_for=LONG)
    assert (counts.committed, counts.moved, counts.failed) == (2, 1, 0)
    assert (counts.in_doubt > 0) is closing
    (letter,) = site.broker.messages("dlq")
    assert letter.body == "bad"
    assert "huge" in str(letter.properties[LEFT_OUT])
    assert original_of(letter) is not None
    assert site.bodies("orders") == []


@every_mode
@pytest.mark.parametrize("closing", [False, True], ids=["said", "closed"])
def test_what_is_refused_in_every_way_stays_and_those_behind_it_go_on(
    site: Site, mode: dict[str, object], *, closing: bool
) -> None:
    """It is delivered once more, as J142 has it, and then left: for ever, it would hold up all others."""
    site.send("bad", p="v")
    site.send("behind", "last")

    def handle(delivery: object) -> None:
        if getattr(delivery, "body", None) == "bad":
            raise ValueError("no stock")

    listener = site.activation(
        handle,
        connect_with=lambda: refusing_at_commit(site.broker, site.settings, 0, closing=closing),
        **ONLY_POISON,
        **mode,
    )
    counts = listener.run(idle_for=QUICK, failure_timeout=LONG, run_for=LONG)
    assert (counts.committed, counts.moved) == (2, 0)
    # Poison is known as such only while it is in hand, and a consumer that promised to settle in order needs
    # another connection to leave a message, and so gets it once more.
    assert 2 <= site.got.count("bad") <= (14 if closing else 4)
    assert site.bodies("orders") == ["bad"]


@pytest.mark.parametrize("mode", MODES[:1], ids=["serial"])
def test_the_password_in_use_is_in_no_dead_letter(site: Site, mode: dict[str, object]) -> None:
    """Bare, as a driver of a database puts it into its error: nothing around it says that it is one."""
    site.settings = replace(site.settings, username="bob", password="t1ger-lily")
    site.send("bad")

    def handle(_: object) -> None:
        raise ValueError("could not log in as bob with t1ger-lily")

    listener = site.activation(handle, redelivery_handling="1:move(queue:dlq)", **mode)
    assert listener.run(idle_for=QUICK, run_for=timedelta(seconds=5)).moved == 1
    (letter,) = site.broker.messages("dlq")
    assert "t1ger-lily" not in str(letter.properties)
    assert letter.properties["JMS_Sun_JMSJCA_ExceptionMessage"] == "could not log in as bob with ***"
