"""When the reader of a connection lets messages gather before it reads on.

Some brokers write each message by itself and wake the reader for nearly each, which costs the broker and us
more than the messages do.
"""

from __future__ import annotations

import math
from typing import Final

SECONDS: Final = 0.001
LEAST_PREFETCH: Final = 50
"""With a smaller one the broker would wait for acknowledgements meanwhile."""
_RAPID: Final = 8_000
"""Messages a second. Questions and answers in turn don't come so fast."""
_MUCH: Final = 32 * 1024
_REPLY_SECONDS: Final = 0.002


class Gathering:
    """Says after each read whether to pause.

    Attributes:
        allowed: Whether it may be said at all.
    """

    def __init__(self) -> None:
        self.allowed = False
        self._last_read = self._last_reply = -math.inf

    def pause_after(self, messages: int, others: int, size: int, now: float) -> float:
        """Return for how many seconds to read nothing.

        Never where somebody seems to wait for each receipt, nor where much comes at a time anyway.

        Args:
            messages: How many were read.
            others: How many frames besides.
            size: How many bytes that was.
            now: When, in seconds on a monotonic clock.
        """
        before, self._last_read = self._last_read, now
        if not self.allowed:
            return 0.0
        if others:
            self._last_reply = now
        is_rapid = messages > (now - before) * _RAPID
        return SECONDS if is_rapid and size < _MUCH and now - self._last_reply > _REPLY_SECONDS else 0.0
