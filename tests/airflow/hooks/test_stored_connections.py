"""Connections of Airflow's database, in a script outside of Airflow's processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from airflow.models.connection import Connection
from airflow.utils.session import create_session

PROGRAM = """
import asyncio, sys
from airflow_provider_jmsjca import AsyncJmsHook, ConfigurationError, JmsHook, use_stored_connections
try:
    JmsHook("jms_stored").settings()
except ConfigurationError as error:
    print(error)
use_stored_connections()
sys.modules.pop("airflow.sdk.execution_time.supervisor", None)  # the first lookup loaded it
print(JmsHook("jms_stored").settings().hosts, "airflow.sdk.execution_time.supervisor" in sys.modules)
async def look():
    async with AsyncJmsHook("jms_stored").get_conn() as connection:
        print(type(connection).__name__)
asyncio.run(look())
try:
    JmsHook("missing").settings()
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.usefixtures("metadata")
def test_a_script_reads_connections_of_the_database_when_told_to() -> None:
    with create_session() as session:
        session.add(Connection(conn_id="jms_stored", conn_type="jms", host="vm://stored"))
    environment = {name: value for name, value in os.environ.items() if name != "_AIRFLOW_PROCESS_CONTEXT"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    unknown, stored, broker, missing = done.stdout.splitlines()[-4:]
    assert unknown == (
        "connection 'jms_stored' is not defined in Airflow, as far as this process sees: it doesn't read "
        "Airflow's database. In a script of your own call use_stored_connections() before, or set "
        "AIRFLOW_CONN_JMS_STORED"
    )
    assert stored == "(('stored', None),) False"  # that module takes longer than most commands
    assert broker == "AsyncJmsConnection"
    assert missing == "connection 'missing' is not defined in Airflow"
