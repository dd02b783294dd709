"""What the suite found out about each broker, for `docs/reference/brokers.md`."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from pathlib import Path
from typing import Any

from airflow_provider_jmsjca import Connection


class Report:
    """Brokers met, what they admit they can't do, and how each test went."""

    def __init__(self) -> None:
        # Of the whole run, where several processes share its tests.
        self._run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
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
        """Write it down, with what other processes of this run found, and earlier runs of other brokers."""
        if not self._brokers:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            known = json.loads(text) if text else {}
            for name, found in self._brokers.items():
                before = known.get(name, {})
                same = before if before.get("run") == self._run else {"tests": {}}
                known[name] = {**same, **found, "tests": same["tests"] | found["tests"], "run": self._run}
            file.truncate(0)
            json.dump(known, file, indent=1, sort_keys=True)
