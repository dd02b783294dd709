"""A process whose sensor consumes for one run after the other; the test kills it."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any


def main() -> None:
    asked = json.loads(sys.stdin.read())
    os.environ["AIRFLOW_CONN_JMS_TEST"] = json.dumps(asked["connection"])
    from airflow_provider_jmsjca import JmsSensor  # noqa: PLC0415  # after the connection is set

    sensor = JmsSensor(
        task_id="wait",
        destination=asked["queue"],
        jms_conn_id="jms_test",
        peek=False,
        max_messages=asked["max_messages"],
        batch_timeout=0.5,
        spool_path=asked["spool"],
    )
    for run in range(asked["first"], asked["runs"]):
        instance = SimpleNamespace(dag_id="dag", run_id=str(run), task_id="wait", map_index=-1)
        context: Any = {"ti": instance}
        while not (found := sensor.poke(context)):
            continue
        value: Any = found.xcom_value
        report = {"run": run, "bodies": [each["message"]["body"] for each in value["messages"]]}
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
