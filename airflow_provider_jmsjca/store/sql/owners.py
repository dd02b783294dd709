"""The live processes, in a database, and the thread that sends their heartbeats."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import delete, select

from airflow_provider_jmsjca.errors import TransientStoreError
from airflow_provider_jmsjca.store.base import BEAT_EVERY, SILENT_FOR, stored_text, to_milliseconds
from airflow_provider_jmsjca.store.sql.database import Database
from airflow_provider_jmsjca.store.sql.tables import OWNER
from airflow_provider_jmsjca.store.sql.windows import chunks

_FORGOTTEN_AFTER = timedelta(days=7)
_PROCESSES = Path("/proc/self/ns/pid")


class SqlOwners:
    """`base.Owners` in a database. After the first `heartbeat`, a thread sends heartbeats until `leave`.

    Args:
        database: Database with the tables.
        where: Host and process, as stored with attempts and runs.
    """

    def __init__(self, database: Database, where: str) -> None:
        self._database = database
        self._process = stored_text(where)[:250]
        self._host = _host()
        self._pid = 0

    def now(self) -> datetime:
        """Return the time by the clock of the database; see `base.Owners.now`."""
        return self._database.now()

    def heartbeat(self, now: datetime) -> None:
        """Send a heartbeat; see `base.Owners.heartbeat`."""
        at = to_milliseconds(now)
        row = self._database.insert(OWNER).values(
            owner=self._process, host=self._host, pid=os.getpid(), started_at=at, seen_at=at
        )
        changed = row.on_conflict_do_update(index_elements=["owner"], set_={"seen_at": row.excluded.seen_at})
        forgotten = to_milliseconds(now - _FORGOTTEN_AFTER)
        with self._database.write() as connection:
            connection.execute(changed)
            if self._pid != os.getpid():
                connection.execute(delete(OWNER).where(OWNER.c.seen_at < forgotten))
        if self._pid != os.getpid():
            self._pid = os.getpid()
            _PULSE.add(self)

    def leave(self) -> None:
        """Remove this process; see `base.Owners.leave`."""
        if self._pid != os.getpid():
            return
        self._pid = 0
        _PULSE.discard(self)
        with self._database.write() as connection:
            connection.execute(delete(OWNER).where(OWNER.c.owner == self._process))

    def live(self, owners: Collection[str], now: datetime) -> frozenset[str]:
        """Return the live processes; see `base.Owners.live`."""
        oldest = to_milliseconds(now - SILENT_FOR)
        found: set[str] = set()
        with self._database.read() as connection:
            for some in chunks(owners):
                query = select(OWNER).where(OWNER.c.owner.in_(some), OWNER.c.seen_at >= oldest)
                found.update(
                    row.owner
                    for row in connection.execute(query)
                    if row.host != self._host or _is_running(row.pid)
                )
        return frozenset(found)


class _Pulse:
    """A thread that sends this process's heartbeats to all its stores; it ends when no store is left."""

    def __init__(self) -> None:
        self._start_over()
        os.register_at_fork(after_in_child=self._start_over)

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._left = threading.Event()
        self._owners: weakref.WeakSet[SqlOwners] = weakref.WeakSet()
        self._running = False

    def add(self, owners: SqlOwners) -> None:
        with self._lock:
            self._owners.add(owners)
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="jms-store-pulse", daemon=True).start()

    def discard(self, owners: SqlOwners) -> None:
        with self._lock:
            self._owners.discard(owners)
            if not self._owners:
                self._left.set()

    def _run(self) -> None:
        while True:
            self._left.wait(BEAT_EVERY.total_seconds())
            with self._lock:
                self._left.clear()
                beating = list(self._owners)
                if not beating:
                    self._running = False
                    return
            for each in beating:
                with contextlib.suppress(TransientStoreError):  # tried again at the next interval
                    each.heartbeat(each.now())


def _host() -> str:
    """Return the name of the scope in which process ids are unique.

    On Linux the scope is a host and a process namespace, because containers have their own; elsewhere it is
    the host.
    """
    try:
        return f"{socket.gethostname()} {_PROCESSES.readlink()}"
    except OSError:  # not on Linux
        return socket.gethostname()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user
        return True
    return True


_PULSE = _Pulse()
