"""An asyncio event that uses little memory while it has no waiters: a thousand streams have two each."""

from __future__ import annotations

import asyncio


class Signal:
    """Lets tasks of one event loop wait for something, as `asyncio.Event` does with more memory."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        """Return whether the signal is set."""
        return self._is_set

    def set(self) -> None:
        """Wake all waiters; later ones don't block until the signal is cleared."""
        self._is_set = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Let later waiters block."""
        self._is_set = False

    async def wait(self) -> None:
        """Return as soon as the signal is set."""
        if self._is_set:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
