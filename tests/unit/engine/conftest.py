from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.engine.listening import Site


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()
