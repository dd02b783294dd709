"""Examines the parts of this installation: Airflow's metadata, brokers, store and spool.

`airflow jms doctor` and the page use it, on a host that reaches Airflow's database.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar

from airflow_provider_jmsjca.errors import ConfigurationError, JmsError, StoreSchemaError
from airflow_provider_jmsjca.hooks.metadata import environment_connections
from airflow_provider_jmsjca.hooks.spool import spool_path
from airflow_provider_jmsjca.hooks.store import installed_store, store_database, store_in_use
from airflow_provider_jmsjca.operating.activations import list_activations
from airflow_provider_jmsjca.operating.doctor.broker import examine_broker
from airflow_provider_jmsjca.operating.doctor.dags import (
    examine_dag_files,
    examine_triggerer,
    examine_watchers,
)
from airflow_provider_jmsjca.operating.doctor.spool import examine_disk, examine_spool
from airflow_provider_jmsjca.operating.doctor.store import examine_store
from airflow_provider_jmsjca.operating.findings import Finding, FindingKind, Part, by_cause
from airflow_provider_jmsjca.store.base import ActivationRun
from airflow_provider_jmsjca.transports.base import ConnectionSettings
from airflow_provider_jmsjca.triggers.watchers import AirflowState, airflow_state

LEAST_FREE: Final = float(1 << 30)
"""Minimum free disk space of spool and store, bytes."""

_AT_ONCE: Final = 32
"""Maximum number of brokers that are examined at the same time."""
_NOTHING_RECORDED: Final = AirflowState(
    triggerer=None, watched=(), deferred=0, connections=(), dead_letter_queues=frozenset()
)

_T = TypeVar("_T")


def examine_installation(
    settings_of: Callable[[str], ConnectionSettings],
    *,
    conn_ids: Collection[str] = (),
    dead_letter_queues: Collection[str] = (),
    least_free: float = LEAST_FREE,
    browse: bool = False,
    brokers: bool = True,
    within: float,
) -> list[Finding]:
    """Examine Airflow's metadata, store, spool, disks and brokers at the same time; return findings by cause.

    Args:
        settings_of: Returns the settings of a connection.
        conn_ids: Examine the brokers of these Airflow connections only; empty: those of all JMS connections.
        dead_letter_queues: Further dead-letter queues, besides those known by their names or from watchers.
        least_free: Minimum free disk space of spool and store, bytes.
        browse: Browse dead letters even if that has a side effect.
        brokers: Whether brokers are examined.
        within: Maximum time in seconds. A finding names each part that took longer.

    Returns:
        One finding for each cause, with the findings that follow from it (`by_cause`).
    """
    deadline = time.monotonic() + within
    metadata = _started("airflow", examine_airflow)
    registry = _started("registry", installed_runs)
    spool = _started("spool", lambda: list(examine_installed_spool(least_free)))
    store = _started("store", lambda: list(examine_installed_store(least_free)))
    # The list of brokers comes from the metadata. So the metadata gets half of the time, and the brokers get
    # the rest.
    half = deadline - within / 2
    late = _late("triggerer, DAGs and watchers", "Airflow's database", within / 2, "airflow db check")
    state, of_airflow = _result(metadata, half, (_NOTHING_RECORDED, [late]))
    of_brokers: dict[str, list[Finding]] = {}
    if brokers:
        runs: list[ActivationRun] = _result(registry, half, [])
        of_brokers = examine_connections(
            conn_ids or connections_in_use(state),
            state,
            settings_of,
            dead_letter_queues=dead_letter_queues,
            runs=runs,
            browse=browse,
            within=max(0.0, deadline - time.monotonic()),
        )
    of_spool = [_late("spool", "its file system or object store", within, "airflow jms spool list")]
    of_store = [_late("store", "its database", within, "airflow jms store check")]
    return by_cause(
        [
            *_result(spool, deadline, of_spool),
            *of_airflow,
            *_result(store, deadline, of_store),
            *(each for found in of_brokers.values() for each in found),
        ]
    )


def examine_airflow() -> tuple[AirflowState, list[Finding]]:
    """Examine triggerer, DAG files and watchers; return the state of Airflow, and the findings.

    If Airflow's database cannot be read, the state is empty, and a finding contains the error.
    """
    try:
        state = airflow_state()
    except JmsError as error:
        finding = Finding(
            kind=FindingKind.UNKNOWN,
            symptom="triggerer, DAGs and watchers not examined",
            cause=str(error),
            fix="airflow db check",
        )
        return _NOTHING_RECORDED, [finding]
    return state, [
        *examine_triggerer(
            state.triggerer, is_needed=bool(state.watched or state.deferred), deferred=state.deferred
        ),
        *examine_dag_files(state.broken_files),
        *examine_watchers(state.watched),
    ]


def connections_in_use(state: AirflowState) -> list[str]:
    """Return the JMS connections of the database and the environment, and those that watchers name."""
    watched = {each.jms_conn_id for each in state.watched}
    return sorted({*state.connections, *environment_connections(), *watched})


def examine_connections(
    conn_ids: Collection[str],
    state: AirflowState,
    settings_of: Callable[[str], ConnectionSettings],
    *,
    dead_letter_queues: Collection[str] = (),
    runs: Sequence[ActivationRun] = (),
    browse: bool = False,
    within: float,
) -> dict[str, list[Finding]]:
    """Examine several brokers at the same time; return the findings by connection.

    Args:
        conn_ids: The Airflow connections.
        state: The state of Airflow.
        settings_of: Returns the settings of a connection.
        dead_letter_queues: Further dead-letter queues, besides those known by their names or from watchers.
        runs: Runs of activations, as `installed_runs` returns them.
        browse: Browse dead letters even if that has a side effect.
        within: Maximum time in seconds. A finding names each broker that took longer.
    """
    queues = state.dead_letter_queues | frozenset(dead_letter_queues)

    permits = threading.BoundedSemaphore(_AT_ONCE)

    def examine(conn_id: str) -> list[Finding]:
        watched = [each for each in state.watched if each.jms_conn_id == conn_id]
        with permits:
            found = examine_broker(
                conn_id, lambda: settings_of(conn_id), watched, queues, browse=browse, runs=runs
            )
            return list(found)

    deadline = time.monotonic() + within
    futures = {each: _started(each, functools.partial(examine, each)) for each in conn_ids}
    return {
        conn_id: _result(future, deadline, [_too_slow(conn_id, within)])
        for conn_id, future in futures.items()
    }


def installed_runs() -> list[ActivationRun]:
    """Return the runs of activations in the registry, including ended ones.

    The list is empty if the installation has no store, or if the store can't be used.

    `examine_installed_store` reports why the store can't be used.
    """
    if not store_in_use():
        return []
    try:
        with contextlib.closing(store_database()) as database:
            database.check()  # `installed_store` would create missing tables
        with contextlib.closing(installed_store()) as store:
            return [run for each in list_activations(store, ended=True) for run in each.runs]
    except JmsError:
        return []


def examine_installed_store(least_free: float = LEAST_FREE) -> Iterator[Finding]:
    """Examine the store of this installation, if it has one, and the disk of its file.

    Args:
        least_free: Minimum free space of the disk, bytes.
    """
    if not store_in_use():
        return
    file: Path | None = None
    is_new = False
    try:
        with contextlib.closing(store_database()) as database:
            file = database.file
            # The first use of a file creates it with its tables.
            is_new = file is not None and database.revision() is None and _can_create(file)
            database.check()
        with contextlib.closing(installed_store()) as store:
            yield from examine_store(store)
    except StoreSchemaError as error:
        yield Finding(
            kind=FindingKind.NOTE if is_new else FindingKind.PROBLEM,
            symptom="the store has no tables yet"
            if is_new
            else "the store cannot be used: its tables are missing or of another version",
            cause=str(error),
            fix="airflow jms store upgrade",
        )
    except JmsError as error:
        yield Finding(
            kind=FindingKind.UNKNOWN,
            symptom="the store cannot be examined",
            cause=str(error),
            fix="airflow jms store check",
        )
    if file is not None:
        yield from examine_disk("store", file.parent, least_free)


def examine_installed_spool(least_free: float = LEAST_FREE) -> Iterator[Finding]:
    """Examine the spool of this installation and its disk.

    Args:
        least_free: Minimum free space of the disk, bytes.
    """
    try:
        spool = spool_path()
    except ConfigurationError as error:
        yield Finding(
            symptom="the spool cannot be used",
            cause=str(error),
            fix="airflow config get-value jmsjca spool_path",
        )
        return
    if isinstance(spool, Path):
        yield from examine_disk("spool", spool, least_free, spool=spool)
    yield from examine_spool(spool)


def _can_create(file: Path) -> bool:
    folder = next(each for each in file.absolute().parents if each.exists())
    return folder.is_dir() and os.access(folder, os.W_OK)


def _started(name: str, work: Callable[[], _T]) -> Future[_T]:
    """Run a function in a thread that does not delay the exit of the process."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is read
            future.set_exception(error)

    threading.Thread(target=run, name=f"jms-doctor-{name}", daemon=True).start()
    return future


def _result(future: Future[_T], deadline: float, late: _T) -> _T:
    """Return the result of a function; `late` if the function has not returned at the deadline."""
    try:
        return future.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        if future.done():  # the function returned just now, or raised this error itself
            return future.result()
        return late


def _late(subject: str, what: str, within: float, fix: str) -> Finding:
    return Finding(
        kind=FindingKind.UNKNOWN,
        symptom=f"{subject} not examined",
        cause=f"{what} did not answer within {within:g} s",
        fix=fix,
    )


def _too_slow(conn_id: str, within: float) -> Finding:
    return Finding(
        kind=FindingKind.UNKNOWN,
        part=Part.BROKERS,
        symptom=f"connection {conn_id!r} not examined",
        cause=f"the broker did not answer all questions within {within:.0f} s",
        fix=f"airflow jms doctor --conn-id {shlex.quote(conn_id)}",
        conn_id=conn_id,
    )
