"""JMS for Apache Airflow and Spark: the names that users import.

`__all__` lists the public names. Each is imported on first access, so that `import airflow_provider_jmsjca`
imports neither Airflow nor PySpark nor a broker's client. `Batch` and `read_schema` need PySpark,
`open_store` needs SQLAlchemy, and Airflow's classes need Airflow. Everything else works without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow_provider_jmsjca.core.activation import ActivationSpec
    from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
    from airflow_provider_jmsjca.core.message import BodyKind, ItemType, JmsMessage, PropertyType
    from airflow_provider_jmsjca.core.name_syntax import NameSyntax
    from airflow_provider_jmsjca.core.redelivery import (
        Delay,
        Delete,
        GrowingDelay,
        Move,
        MoveKind,
        MoveTarget,
        RedeliveryHandling,
    )
    from airflow_provider_jmsjca.core.selector import Selector, substitute
    from airflow_provider_jmsjca.decorators.listener import jms_listener_task
    from airflow_provider_jmsjca.decorators.sensor import jms_sensor_task
    from airflow_provider_jmsjca.engine.activations.activation import Activation
    from airflow_provider_jmsjca.engine.activations.health import HealthServer
    from airflow_provider_jmsjca.engine.delivering.delivery import Delivery, DeliveryContext
    from airflow_provider_jmsjca.engine.delivering.loop.stream import StreamDelivery
    from airflow_provider_jmsjca.engine.delivering.statistics import Counts, Statistics
    from airflow_provider_jmsjca.engine.session.connection import JmsConnection
    from airflow_provider_jmsjca.engine.session.session import AcknowledgeMode, JmsSession
    from airflow_provider_jmsjca.errors import (
        AuthenticationError,
        BatchInUseError,
        BlockedByBrokerError,
        CapabilityError,
        ClientIdInUseError,
        ConfigurationError,
        ConnectionLostError,
        DeliveryStoppedError,
        FencedError,
        InDoubtError,
        JmsError,
        PermanentBrokerError,
        PoisonMessageError,
        ReplyTimeoutError,
        SpoolError,
        StoreSchemaError,
        TransientBrokerError,
        TransientStoreError,
    )
    from airflow_provider_jmsjca.hooks.async_jms import AsyncJmsConnection, AsyncJmsHook
    from airflow_provider_jmsjca.hooks.jms import JmsHook
    from airflow_provider_jmsjca.hooks.stored_connections import use_stored_connections
    from airflow_provider_jmsjca.notifications.jms import JmsNotifier
    from airflow_provider_jmsjca.operating.activations import (
        ActivationStatus,
        activation_status,
        list_activations,
        request_activation_state,
        resume_activations,
    )
    from airflow_provider_jmsjca.operating.attempts import (
        UnsettledMessage,
        UnsettledState,
        attempt_history,
        list_attempts,
        list_unsettled,
        reset_attempts,
        resolve_in_doubt,
    )
    from airflow_provider_jmsjca.operating.dead_letters import (
        DeadLetterGroup,
        DeadLetterList,
        Replay,
        ReplayResult,
        editable_message,
        list_dead_letters,
        replay_dead_letters,
        resend_edited,
    )
    from airflow_provider_jmsjca.operating.limbo import (
        LimboChange,
        LimboChangeResult,
        LimboContent,
        change_limbo,
        limbo_selection,
        list_limbo,
        show_limbo,
    )
    from airflow_provider_jmsjca.operating.queues import (
        MessagePage,
        QueueChange,
        QueueEntry,
        QueueList,
        browse_queue,
        change_messages,
        list_queues,
        open_administration,
    )
    from airflow_provider_jmsjca.operators.acknowledge import JmsAcknowledgeOperator
    from airflow_provider_jmsjca.operators.collect import JmsCollectOperator
    from airflow_provider_jmsjca.operators.listen import JmsListenOperator
    from airflow_provider_jmsjca.operators.publish import JmsPublishOperator
    from airflow_provider_jmsjca.operators.replay import JmsReplayOperator
    from airflow_provider_jmsjca.operators.request import JmsRequestOperator
    from airflow_provider_jmsjca.operators.spark import JmsToSparkSubmitOperator
    from airflow_provider_jmsjca.operators.spool import JmsSpoolMaintenanceOperator
    from airflow_provider_jmsjca.sensors.jms import JmsSensor
    from airflow_provider_jmsjca.spark.data_sources import register_data_sources
    from airflow_provider_jmsjca.spark.job import Batch
    from airflow_provider_jmsjca.spark.mapping import Mapped, map_json
    from airflow_provider_jmsjca.spark.preview import Preview
    from airflow_provider_jmsjca.spark.rejects import RejectedMessage, rejected_messages
    from airflow_provider_jmsjca.spark.schemas.schema_file import read_schema
    from airflow_provider_jmsjca.spark.streams import ForeachBatch
    from airflow_provider_jmsjca.spool.manifest import Manifest, Segment
    from airflow_provider_jmsjca.spool.references import message_from_event, messages_from_event
    from airflow_provider_jmsjca.spool.rows import StoredMessage, manifest_messages
    from airflow_provider_jmsjca.store.base import (
        ActivationKind,
        ActivationOrder,
        ActivationRun,
        AttemptEntry,
        Attempts,
        Limbo,
        LimboMessage,
        LimboSelection,
        LimboState,
        MessageAttempts,
        RunReport,
        RunStatus,
        Store,
        WantedState,
    )
    from airflow_provider_jmsjca.store.sql.store import open_store
    from airflow_provider_jmsjca.transports import connect
    from airflow_provider_jmsjca.transports.administration import (
        MessageSelection,
        QueueAdministration,
        QueueOperation,
        QueueStatistics,
    )
    from airflow_provider_jmsjca.transports.base import (
        Connection,
        ConnectionSettings,
        Outgoing,
        Subscription,
        TlsSettings,
    )
    from airflow_provider_jmsjca.transports.capabilities import Capabilities
    from airflow_provider_jmsjca.transports.memory.broker import MemoryBroker, memory_broker
    from airflow_provider_jmsjca.transports.settings import connection_settings
    from airflow_provider_jmsjca.transports.stomp.dialects import register_dialect
    from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
    from airflow_provider_jmsjca.transports.stomp.dialects.generic import GenericDialect
    from airflow_provider_jmsjca.transports.stomp.dialects.settlement import Cumulative, Recovery, UnitKind
    from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame
    from airflow_provider_jmsjca.triggers.activation import JmsActivationTrigger

__version__ = "0.1.0"

_MODULES: Final = {
    "core.activation": ("ActivationSpec",),
    "core.destination": ("Destination", "DestinationKind"),
    "core.message": ("BodyKind", "ItemType", "JmsMessage", "PropertyType"),
    "core.name_syntax": ("NameSyntax",),
    "core.redelivery": (
        "Delay",
        "Delete",
        "GrowingDelay",
        "Move",
        "MoveKind",
        "MoveTarget",
        "RedeliveryHandling",
    ),
    "core.selector": ("Selector", "substitute"),
    "decorators.listener": ("jms_listener_task",),
    "decorators.sensor": ("jms_sensor_task",),
    "engine.activations.activation": ("Activation",),
    "engine.activations.health": ("HealthServer",),
    "engine.delivering.delivery": ("Delivery", "DeliveryContext"),
    "engine.delivering.loop.stream": ("StreamDelivery",),
    "engine.delivering.statistics": ("Counts", "Statistics"),
    "engine.session.connection": ("JmsConnection",),
    "engine.session.session": ("AcknowledgeMode", "JmsSession"),
    "errors": (
        "AuthenticationError",
        "BatchInUseError",
        "BlockedByBrokerError",
        "CapabilityError",
        "ClientIdInUseError",
        "ConfigurationError",
        "ConnectionLostError",
        "DeliveryStoppedError",
        "FencedError",
        "InDoubtError",
        "JmsError",
        "PermanentBrokerError",
        "PoisonMessageError",
        "ReplyTimeoutError",
        "SpoolError",
        "StoreSchemaError",
        "TransientBrokerError",
        "TransientStoreError",
    ),
    "hooks.async_jms": ("AsyncJmsConnection", "AsyncJmsHook"),
    "hooks.jms": ("JmsHook",),
    "hooks.stored_connections": ("use_stored_connections",),
    "notifications.jms": ("JmsNotifier",),
    "operating.activations": (
        "ActivationStatus",
        "activation_status",
        "list_activations",
        "request_activation_state",
        "resume_activations",
    ),
    "operating.attempts": (
        "UnsettledMessage",
        "UnsettledState",
        "attempt_history",
        "list_attempts",
        "list_unsettled",
        "reset_attempts",
        "resolve_in_doubt",
    ),
    "operating.dead_letters": (
        "DeadLetterGroup",
        "DeadLetterList",
        "Replay",
        "ReplayResult",
        "editable_message",
        "list_dead_letters",
        "replay_dead_letters",
        "resend_edited",
    ),
    "operating.limbo": (
        "LimboChange",
        "LimboChangeResult",
        "LimboContent",
        "change_limbo",
        "limbo_selection",
        "list_limbo",
        "show_limbo",
    ),
    "operating.queues": (
        "MessagePage",
        "QueueChange",
        "QueueEntry",
        "QueueList",
        "browse_queue",
        "change_messages",
        "list_queues",
        "open_administration",
    ),
    "operators.acknowledge": ("JmsAcknowledgeOperator",),
    "operators.collect": ("JmsCollectOperator",),
    "operators.listen": ("JmsListenOperator",),
    "operators.publish": ("JmsPublishOperator",),
    "operators.replay": ("JmsReplayOperator",),
    "operators.request": ("JmsRequestOperator",),
    "operators.spark": ("JmsToSparkSubmitOperator",),
    "operators.spool": ("JmsSpoolMaintenanceOperator",),
    "sensors.jms": ("JmsSensor",),
    "spark.data_sources": ("register_data_sources",),
    "spark.job": ("Batch",),
    "spark.mapping": ("Mapped", "map_json"),
    "spark.rejects": ("RejectedMessage", "rejected_messages"),
    "spark.preview": ("Preview",),
    "spark.schemas.schema_file": ("read_schema",),
    "spool.manifest": ("Manifest", "Segment"),
    "spool.references": ("message_from_event", "messages_from_event"),
    "spool.rows": ("StoredMessage", "manifest_messages"),
    "spark.streams": ("ForeachBatch",),
    "store.base": (
        "ActivationKind",
        "ActivationOrder",
        "ActivationRun",
        "AttemptEntry",
        "Attempts",
        "Limbo",
        "LimboMessage",
        "LimboSelection",
        "LimboState",
        "MessageAttempts",
        "RunReport",
        "RunStatus",
        "Store",
        "WantedState",
    ),
    "store.sql.store": ("open_store",),
    "transports": ("connect",),
    "transports.administration": (
        "MessageSelection",
        "QueueAdministration",
        "QueueOperation",
        "QueueStatistics",
    ),
    "transports.base": ("Connection", "ConnectionSettings", "Outgoing", "Subscription", "TlsSettings"),
    "transports.capabilities": ("Capabilities",),
    "transports.memory.broker": ("MemoryBroker", "memory_broker"),
    "transports.settings": ("connection_settings",),
    "transports.stomp.dialects": ("register_dialect",),
    "transports.stomp.dialects.dialect": ("Dialect",),
    "transports.stomp.dialects.generic": ("GenericDialect",),
    "transports.stomp.dialects.settlement": ("Cumulative", "Recovery", "UnitKind"),
    "transports.stomp.wire.frames": ("Frame",),
    "triggers.activation": ("JmsActivationTrigger",),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AcknowledgeMode",
    "Activation",
    "ActivationKind",
    "ActivationOrder",
    "ActivationRun",
    "ActivationSpec",
    "ActivationStatus",
    "AsyncJmsConnection",
    "AsyncJmsHook",
    "AttemptEntry",
    "Attempts",
    "AuthenticationError",
    "Batch",
    "BatchInUseError",
    "BlockedByBrokerError",
    "BodyKind",
    "Capabilities",
    "CapabilityError",
    "ClientIdInUseError",
    "ConfigurationError",
    "Connection",
    "ConnectionLostError",
    "ConnectionSettings",
    "Counts",
    "Cumulative",
    "DeadLetterGroup",
    "DeadLetterList",
    "Delay",
    "Delete",
    "Delivery",
    "DeliveryContext",
    "DeliveryStoppedError",
    "Destination",
    "DestinationKind",
    "Dialect",
    "FencedError",
    "ForeachBatch",
    "Frame",
    "GenericDialect",
    "GrowingDelay",
    "HealthServer",
    "InDoubtError",
    "ItemType",
    "JmsAcknowledgeOperator",
    "JmsActivationTrigger",
    "JmsCollectOperator",
    "JmsConnection",
    "JmsError",
    "JmsHook",
    "JmsListenOperator",
    "JmsMessage",
    "JmsNotifier",
    "JmsPublishOperator",
    "JmsReplayOperator",
    "JmsRequestOperator",
    "JmsSensor",
    "JmsSession",
    "JmsSpoolMaintenanceOperator",
    "JmsToSparkSubmitOperator",
    "Limbo",
    "LimboChange",
    "LimboChangeResult",
    "LimboContent",
    "LimboMessage",
    "LimboSelection",
    "LimboState",
    "Manifest",
    "Mapped",
    "MemoryBroker",
    "MessageAttempts",
    "MessagePage",
    "MessageSelection",
    "Move",
    "MoveKind",
    "MoveTarget",
    "NameSyntax",
    "Outgoing",
    "PermanentBrokerError",
    "PoisonMessageError",
    "Preview",
    "PropertyType",
    "QueueAdministration",
    "QueueChange",
    "QueueEntry",
    "QueueList",
    "QueueOperation",
    "QueueStatistics",
    "Recovery",
    "RedeliveryHandling",
    "RejectedMessage",
    "Replay",
    "ReplayResult",
    "ReplyTimeoutError",
    "RunReport",
    "RunStatus",
    "Segment",
    "Selector",
    "SpoolError",
    "Statistics",
    "Store",
    "StoreSchemaError",
    "StoredMessage",
    "StreamDelivery",
    "Subscription",
    "TlsSettings",
    "TransientBrokerError",
    "TransientStoreError",
    "UnitKind",
    "UnsettledMessage",
    "UnsettledState",
    "WantedState",
    "activation_status",
    "attempt_history",
    "browse_queue",
    "change_limbo",
    "change_messages",
    "connect",
    "connection_settings",
    "editable_message",
    "jms_listener_task",
    "jms_sensor_task",
    "limbo_selection",
    "list_activations",
    "list_attempts",
    "list_dead_letters",
    "list_limbo",
    "list_queues",
    "list_unsettled",
    "manifest_messages",
    "map_json",
    "memory_broker",
    "message_from_event",
    "messages_from_event",
    "open_administration",
    "open_store",
    "read_schema",
    "register_data_sources",
    "register_dialect",
    "rejected_messages",
    "replay_dead_letters",
    "request_activation_state",
    "resend_edited",
    "reset_attempts",
    "resolve_in_doubt",
    "resume_activations",
    "show_limbo",
    "substitute",
    "use_stored_connections",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
