"""A process that replays dead letters: `python -m tests.chaos.replaying`.

Reads a JSON object from stdin: `queue` (the original destination, whose dead letters are on `<queue>.dlq`),
and of the broker `host`, `port`, `username`, `password`. With `units` it kills itself `delay` seconds after
that many units of work, at the latest three units later.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time

from airflow_provider_jmsjca import ConnectionSettings, Destination, Replay, connect, replay_dead_letters

_UNITS_LEFT = 3


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_after(delay: float) -> None:
    time.sleep(delay)
    _die()


if __name__ == "__main__":
    given = json.load(sys.stdin)
    units = itertools.count(1)

    def progress(_: int) -> None:
        done = next(units)
        if done == given.get("units"):
            threading.Thread(target=_die_after, args=(given["delay"],)).start()
        elif "units" in given and done == given["units"] + _UNITS_LEFT:
            _die()

    settings = ConnectionSettings(
        scheme="stomp",
        hosts=((given["host"], given["port"]),),
        username=given["username"],
        password=given["password"],
    )
    origin = Destination.queue(given["queue"])
    replay_dead_letters(
        connect(settings),
        Destination.queue(f"{origin.name}.dlq"),
        Replay(run="killed", origins=frozenset({origin})),
        progress=progress,
    )
