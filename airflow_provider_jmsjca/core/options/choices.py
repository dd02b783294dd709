"""Enums for options that accept a closed set of values."""

from __future__ import annotations

import enum


class DestinationType(enum.StrEnum):
    """Queue or topic; `javax.jms.Queue` and `jakarta.jms.Topic` are read too. Source: J51, W13, P10."""

    QUEUE = "queue"
    TOPIC = "topic"


class SubscriptionDurability(enum.StrEnum):
    """Whether a topic keeps messages while the subscriber is away. Source: J52, W13."""

    NON_DURABLE = "non_durable"
    DURABLE = "durable"


class ConcurrencyMode(enum.StrEnum):
    """How deliveries are spread over threads. Source: J54, J81-J84."""

    SERIAL = "serial"
    CC = "cc"
    SYNC = "sync"


class BeanAcknowledge(enum.StrEnum):
    """How a bean-managed activation acknowledges. Source: J63, W13, W23."""

    AUTO = "auto_acknowledge"
    DUPS_OK = "dups_ok_acknowledge"


class TransactionType(enum.StrEnum):
    """The party that ends the transaction: this package (container) or the handler. Source: W13, W21, W23."""

    CONTAINER = "container"
    BEAN = "bean"


class TransactionAttribute(enum.StrEnum):
    """Whether a container-managed delivery is transactional at all. Source: W13, W21."""

    REQUIRED = "required"
    NOT_SUPPORTED = "not_supported"


class DistributedDestinationConnection(enum.StrEnum):
    """Members of a distributed destination that are consumed. Source: W12, W17."""

    LOCAL_ONLY = "local_only"
    EVERY_MEMBER = "every_member"


class InDoubtEvents(enum.StrEnum):
    """Treatment, at start, of messages left in the in-progress destination. Source: I10-I14."""

    FAIL_ON_STARTUP = "fail_on_startup"
    REPROCESS = "reprocess"
    LOG_ERROR = "log_error"
    IGNORE = "ignore"


class ContainerManagedEvents(enum.StrEnum):
    """Whether events pass from source to destination in one JMS transaction. Source: I15, I16."""

    NONE = "none"
    JMS = "jms"


class RedeliveryAction(enum.StrEnum):
    """Action after the last redelivery. Source: C14."""

    NONE = "none"
    MOVE = "move"
    DELETE = "delete"


SYNONYMS: dict[str, str] = {
    "multireceiver": "sync",
    "auto": "same",
    "javaxjmsqueue": "queue",
    "javaxjmstopic": "topic",
    "jakartajmsqueue": "queue",
    "jakartajmstopic": "topic",
}
"""Further spelling of a value -> the value. Both consist of letters and digits in lower case."""
