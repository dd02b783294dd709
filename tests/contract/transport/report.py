"""What the suite found out about each broker, for `docs/reference/brokers.md`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_provider_jmsjca.transports.base import Connection


class Report:
    """Brokers met, what they admit they can't do, and how each test went."""

    def __init__(self) -> None:
        self._brokers: dict[str, dict[str, Any]] = {}

    def met(self, name: str, connection: Connection) -> None:
        """A connection told what the broker can do."""
        found = self._brokers.setdefault(name, {"tests": {}})
        found["product"] = connection.broker.product
        found["version"] = connection.broker.version
        found["capabilities"] = {
            key: sorted(value) if isinstance(value, frozenset) else value
            for key, value in connection.capabilities.table().items()
        }

    def ran(self, name: str, test: str, outcome: str) -> None:
        """A test ended; one failure among its cases is a failure."""
        tests = self._brokers.setdefault(name, {"tests": {}})["tests"]
        if tests.get(test) != "failed":
            tests[test] = outcome

    def write(self, path: Path) -> None:
        """Write it down, leaving what earlier runs found about brokers not met this time."""
        if not self._brokers:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps({**earlier, **self._brokers}, indent=1, sort_keys=True), encoding="utf-8")
