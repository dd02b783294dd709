"""The acknowledge modes of JMS sessions."""

from __future__ import annotations

import enum


class AcknowledgeMode(enum.StrEnum):
    """When what a session received is settled. Source: JMS 2.0 section 6.2.10.

    Attributes:
        AUTO: When `receive` returns; the broker has confirmed it by then.
        CLIENT: When `acknowledge` is called: all that the session received so far.
        DUPS_OK: When `receive` returns, without waiting for the broker: faster, and the last few messages
            may come again after a crash.
        SESSION_TRANSACTED: When `commit` is called, together with what the session sent.
    """

    AUTO = "auto"
    CLIENT = "client"
    DUPS_OK = "dups_ok"
    SESSION_TRANSACTED = "session_transacted"
