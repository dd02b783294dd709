"""Whether opening a batch takes longer, the more batches there were before."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.spool.rows import Row
from airflow_provider_jmsjca.spool.spool import SpoolBatch

MOST_MILLISECONDS: Final = 20.0
"""What opening a batch and looking up its first message may take."""
_EARLIER: Final = (0, 100, 2_000)
_MESSAGES: Final = 100
_TIMES: Final = 15
_ORDERS: Final = Destination.queue("orders")


def report(earlier: tuple[int, ...] = _EARLIER) -> Iterator[str]:
    """Yield a line for each number of earlier batches, and a verdict; 2,000 hold all ids of the horizon."""
    spool, sums = Path(tempfile.mkdtemp(prefix="jms-growth-")), []
    try:
        made = 0
        for count in earlier:
            for number in range(made, count):
                _batch(spool, f"earlier-{number}", range(number * _MESSAGES, (number + 1) * _MESSAGES))
            made = count
            opened, asked = _quickest(spool, count)
            sums.append((opened + asked) * 1000)
            yield (
                f"after {count:>5,} batches of {_MESSAGES} messages: opened in {opened * 1000:.1f} ms, "
                f"first message looked up in {asked * 1000:.1f} ms"
            )
        most = max(sums)
        yield (
            f"{'met' if most <= MOST_MILLISECONDS else 'NOT MET'}: at most {most:.1f} ms, goal "
            f"{MOST_MILLISECONDS:g} ms whatever the number of batches"
        )
    finally:
        shutil.rmtree(spool)


def _quickest(spool: Path, count: int) -> tuple[float, float]:
    opened, asked = [], []
    for number in range(_TIMES):
        began = time.perf_counter()
        with SpoolBatch(spool, f"new-{count}-{number}", source=str(_ORDERS), activation="a") as batch:
            middle = time.perf_counter()
            batch.may_contain(f"ID:{count}-{number} {_ORDERS}")
            asked.append(time.perf_counter() - middle)
            opened.append(middle - began)
            batch.complete()
        batch.discard()
    return min(opened), min(asked)


def _batch(spool: Path, batch_id: str, numbers: range) -> None:
    rows = [
        Row(JmsMessage.text("body", message_id=f"ID:host-50000-1:{number}", destination=_ORDERS), 0)
        for number in numbers
    ]
    with SpoolBatch(spool, batch_id, source=str(_ORDERS), activation="a") as batch:
        batch.seal(rows)
        batch.complete()
