"""A process whose task asks and waits for the answer; the test kills it."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any


def main() -> None:
    asked = json.loads(sys.stdin.read())
    os.environ["AIRFLOW_CONN_JMS_TEST"] = json.dumps(asked["connection"])
    from airflow_provider_jmsjca import JmsRequestOperator  # noqa: PLC0415  # after the connection is set

    operator = JmsRequestOperator(task_id="ask", jms_conn_id="jms_test", message="how much?", **asked["task"])
    instance = SimpleNamespace(dag_id="dag", run_id=asked["run"], task_id="ask", map_index=-1, try_number=1)
    context: Any = {"ti": instance}
    operator.execute(context)


if __name__ == "__main__":
    main()
