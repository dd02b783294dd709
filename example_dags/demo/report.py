"""What the demo shows, read from the spool, the table and the dead letters themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds

from airflow_provider_jmsjca import Destination, JmsMessage
from airflow_provider_jmsjca.spool.attempts import Done
from airflow_provider_jmsjca.spool.manifest import MANIFEST, Manifest

ROWS_SHOWN = 12
_STACK_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The Spark table as found on disk.

    Attributes:
        rows: How many flights it holds.
        numbers: The numbers of the flights in it, each as often as it is there.
        delays: Mean delays in minutes per carrier and airport, the worst first.
    """

    rows: int
    numbers: Sequence[int]
    delays: Sequence[dict[str, object]]


def finished_batches(spool: Path) -> list[Done]:
    """Return the reports of the batches whose Spark job has finished."""
    return [done for folder in _batches(spool) if (done := Done.read(folder)) is not None]


def collected_rows(spool: Path) -> int:
    """Return how many messages stand in finished batches of the spool."""
    return sum(
        Manifest.read(folder / MANIFEST).rows for folder in _batches(spool) if (folder / MANIFEST).exists()
    )


def read_table(table: Path) -> Counted:
    """Read the flights table."""
    flights = ds.dataset(table, format="parquet", partitioning="hive").to_table(
        columns=["number", "carrier", "origin", "dep_delay", "arr_delay"]
    )
    grouped = flights.group_by(["carrier", "origin"]).aggregate(
        [("dep_delay", "mean"), ("arr_delay", "mean"), ("number", "count")]
    )
    return Counted(
        rows=flights.num_rows,
        numbers=flights["number"].to_pylist(),
        delays=grouped.sort_by([("arr_delay_mean", "descending")]).to_pylist(),
    )


def delays(counted: Counted) -> str:
    """Format the mean delays as a table."""
    lines = [
        "carrier  airport  flights  departure delay  arrival delay   (minutes, mean)",
        "-------  -------  -------  ---------------  -------------",
    ]
    lines += [
        f"{row['carrier']:<7}  {row['origin']:<7}  {row['number_count']:>7,}"
        f"  {row['dep_delay_mean']:>15.1f}  {row['arr_delay_mean']:>13.1f}"
        for row in counted.delays[:ROWS_SHOWN]
    ]
    if len(counted.delays) > ROWS_SHOWN:
        lines.append(f"... and {len(counted.delays) - ROWS_SHOWN} more carriers and airports")
    return "\n".join(lines)


def dead_letter(message: JmsMessage, destination: Destination) -> str:
    """Format one dead letter with its properties."""
    lines = [f"One dead letter of {destination}:", f"  body: {message.body}"]
    for name in sorted(message.properties):
        value = str(message.properties[name])
        shown = value.splitlines()[:_STACK_LINES]
        lines.append(f"  {name} = " + "\n      ".join(shown))
    return "\n".join(lines)


def _batches(spool: Path) -> list[Path]:
    return sorted(path for path in spool.iterdir() if path.is_dir()) if spool.is_dir() else []
