"""A process that counts attempts: `python -m tests.contract.store.writer URL ROUNDS MESSAGE...`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from airflow_provider_jmsjca import open_store

if __name__ == "__main__":
    url, rounds, *messages = sys.argv[1:]
    opened = open_store(url)
    for _ in range(int(rounds)):
        opened.attempts.begin("orders", messages, datetime.now(UTC))
        opened.handled.add("orders", messages, datetime.now(UTC))
    opened.close()
