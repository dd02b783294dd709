"""Subscription names that configure a distributed durable subscriber."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.query import read_query
from airflow_provider_jmsjca.errors import ConfigurationError

_PREFIX = "jmsjca://"
_KEYS = ("distribution", "distributed", "subscribername", "queue", "mbeanname", "batchsize")
_DEFAULT_BATCH_SIZE = 10
_WHAT = "subscription name"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionName:
    """The name of a durable subscription, and how its messages reach the instances that share it.

    Attributes:
        subscriber_name: Name of the durable subscription at the broker.
        distributed: Whether the active subscriber moves messages to a queue that every instance consumes.
        queue: Name of this queue; `None`: the name consists of `LOADBALQ_`, the topic, `_` and the subscriber
            name.
        mbean_name: Name of the activation that moves the messages; `None`: the consuming activation's name
            with `-LOADBALQ` appended.
        batch_size: Messages moved in one transaction.

    Source: J204-J211.
    """

    subscriber_name: str
    distributed: bool = False
    queue: str | None = None
    mbean_name: str | None = None
    batch_size: int = _DEFAULT_BATCH_SIZE

    @classmethod
    def parse(cls, text: str) -> SubscriptionName:
        """Return the subscription that a subscription name describes.

        The form for a distributed subscription is
        `jmsjca://?distribution=1&subscribername=s[&queue=q][&mbeanname=m][&batchsize=b]`. It is also read
        without the `?`, and with `distributed` for `distribution`. Any other text is a plain name.

        Raises:
            ConfigurationError: Lists every unknown key, and every missing or invalid value.
        """
        if not text.lower().startswith(_PREFIX):
            if not text.strip():
                raise ConfigurationError(f"{_WHAT}: got nothing, expected a name")
            return cls(subscriber_name=text)
        faults: list[str] = []
        given = read_query(text[len(_PREFIX) :].removeprefix("?"), _WHAT, faults)
        pairs: dict[str, str] = {}
        for key, value in given.items():
            if key.lower() in _KEYS:
                pairs[key.lower()] = value
            else:
                close = difflib.get_close_matches(key.lower()[:40], _KEYS, n=1)
                faults.append(
                    f"{_WHAT}: unknown key {key!r}{f' (did you mean {close[0]}?)' if close else ''}"
                )
        distributed = _flag(pairs, faults)
        if not pairs.get("subscribername"):
            faults.append(
                f"{_WHAT}: subscribername is missing, expected the name of the durable subscription"
            )
        size = pairs.get("batchsize", str(_DEFAULT_BATCH_SIZE))
        if not (size.isascii() and size.isdigit() and len(size) <= len("999999") and int(size) > 0):
            faults.append(f"{_WHAT}: batchsize: got {size!r}, expected a whole number from 1 to 999999")
        if faults:
            raise ConfigurationError(faults)
        return cls(
            subscriber_name=pairs["subscribername"],
            distributed=distributed,
            queue=pairs.get("queue") or None,
            mbean_name=pairs.get("mbeanname") or None,
            batch_size=int(size),
        )

    def queue_for(self, topic: Destination) -> Destination:
        """Return the queue between the active subscriber and the instances."""
        return Destination.queue(self.queue or f"LOADBALQ_{topic.name}_{self.subscriber_name}")

    def name_for(self, activation: str) -> str:
        """Return the name of the activation that moves the messages."""
        return self.mbean_name or f"{activation}-LOADBALQ"


def _flag(pairs: dict[str, str], faults: list[str]) -> bool:
    given = {pairs[key] for key in ("distribution", "distributed") if key in pairs}
    if not given:
        faults.append(
            f"{_WHAT}: distribution is missing, expected distribution=1 (on) or distribution=0 (off)"
        )
    elif len(given) > 1:
        faults.append(f"{_WHAT}: distribution and distributed differ, expected one of them")
    elif not given <= {"0", "1"}:
        faults.append(f"{_WHAT}: distribution: got {given.pop()!r}, expected 1 (on) or 0 (off)")
    return given == {"1"}
