"""Every change of state that happens in a unit test is checked against the table of transitions."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_jmsjca.core.delivery.states import InFlightMessage, Unit, check_transition


def _checked(slot: Any) -> property:
    def change(owner: object, after: enum.Enum) -> None:
        try:
            before = slot.__get__(owner)
        except AttributeError:  # it is being made
            before = after
        check_transition(before, after)
        slot.__set__(owner, after)

    return property(slot.__get__, change)


@pytest.fixture(scope="session", autouse=True)
def _transitions() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for owner, names in ((InFlightMessage, ("condition", "counted")), (Unit, ("phase", "prospect"))):
            for name in names:
                patched.setattr(owner, name, _checked(getattr(owner, name)))
        yield
