"""Two triggerers store an event of one asset at the same time; the scheduler makes runs of what is stored.

Arguments: where the first of them is slow, `early` or `late`; a file, to which the numbers of the events
without a run go. The metadata database is in the environment, and is PostgreSQL.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from airflow import settings
from airflow.assets.manager import AssetManager
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.listeners import hookimpl
from airflow.listeners.listener import get_listener_manager
from airflow.models.asset import AssetDagRunQueue, AssetEvent, AssetModel
from airflow.models.dag import DagModel
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset
from sqlalchemy import select, text

from tests.airflow.task_runs import serialized

SECONDS = 60.0
WAITING = (
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
)

reached, may_go_on = threading.Event(), threading.Event()
scheduler = SchedulerJobRunner(Job())


class Early:
    """Has the slow triggerer pause when its event is written, before the provider's listener is called."""

    @hookimpl
    def on_asset_changed(self, asset: object) -> None:
        del asset
        if threading.current_thread() is slow and sys.argv[1] == "early":
            pause()


def pause() -> None:
    reached.set()
    may_go_on.wait(SECONDS)


def store(number: int) -> None:
    """Store an event as a triggerer does, in a transaction of its own."""
    session = settings.get_session()()
    asset = session.scalars(select(AssetModel)).one()
    payload = {"event": "message", "jms_conn_id": "jms", "number": number}
    AssetManager.register_asset_change(
        asset=asset, extra={"from_trigger": True, "payload": payload}, session=session
    )
    if threading.current_thread() is slow and sys.argv[1] == "late":
        pause()
    session.commit()


def make_runs() -> None:
    """Make a run of what is asked for, as the scheduler does."""
    session = settings.get_session()()
    scheduler._create_dag_runs_asset_triggered(
        dag_models=session.scalars(select(DagModel)).all(), session=session
    )
    session.commit()


def waits_for_a_lock() -> bool:
    session = settings.get_session()()
    try:
        return bool(session.scalar(text(WAITING)))
    finally:
        session.rollback()


with DAG("shop", schedule=[Asset("orders")]) as dag:
    EmptyOperator(task_id="end")
serialized(dag)
with settings.get_session()() as beginning:
    beginning.execute(text("update dag set is_paused = false"))
    beginning.commit()
slow, quick = (threading.Thread(target=store, args=(number,)) for number in (1, 2))
get_listener_manager().add_listener(Early())
slow.start()
assert reached.wait(SECONDS)
quick.start()
until = time.monotonic() + SECONDS
while quick.is_alive() and not waits_for_a_lock() and time.monotonic() < until:
    time.sleep(0.05)
make_runs()
may_go_on.set()
slow.join(SECONDS)
quick.join(SECONDS)
make_runs()
with settings.get_session()() as end:
    assert end.scalars(select(AssetDagRunQueue)).all() == []
    events = end.scalars(select(AssetEvent)).all()
    assert sorted(event.extra["payload"]["number"] for event in events) == [1, 2]
    left = [event.extra["payload"]["number"] for event in events if not event.created_dagruns]
    Path(sys.argv[2]).write_text(json.dumps(left))
