"""JMS for Apache Airflow and Spark: the names that users import.

The names of `__all__` are the public surface. Each is imported when it is asked for, so that
`import airflow_provider_jmsjca` brings in neither Airflow nor PySpark nor a broker's client. `Batch` and
`read_schema` need PySpark, `open_store` SQLAlchemy, and Airflow's classes need Airflow; everything else works
without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow_provider_jmsjca.core.activation import ActivationSpec
    from airflow_provider_jmsjca.core.destination import Destination
    from airflow_provider_jmsjca.core.message import BodyKind, JmsMessage
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
    from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
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
    from airflow_provider_jmsjca.hooks.async_jms import AsyncJmsHook
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
    from airflow_provider_jmsjca.operators.acknowledge import JmsAcknowledgeOperator
    from airflow_provider_jmsjca.operators.collect import JmsCollectOperator
    from airflow_provider_jmsjca.operators.listen import JmsListenOperator
    from airflow_provider_jmsjca.operators.publish import JmsPublishOperator
    from airflow_provider_jmsjca.operators.replay import JmsReplayOperator
    from airflow_provider_jmsjca.operators.request import JmsRequestOperator
    from airflow_provider_jmsjca.operators.spark import JmsToSparkSubmitOperator
    from airflow_provider_jmsjca.operators.spool import JmsSpoolMaintenanceOperator
    from airflow_provider_jmsjca.sensors.jms import JmsSensor
    from airflow_provider_jmsjca.spark.job import Batch
    from airflow_provider_jmsjca.spark.schemas.schema_file import read_schema
    from airflow_provider_jmsjca.store.base import (
        ActivationKind,
        ActivationOrder,
        ActivationRun,
        LimboSelection,
        RunReport,
        RunStatus,
        WantedState,
    )
    from airflow_provider_jmsjca.store.sql.store import open_store
    from airflow_provider_jmsjca.transports import connect
    from airflow_provider_jmsjca.transports.base import (
        ConnectionSettings,
        Outgoing,
        Subscription,
        TlsSettings,
    )
    from airflow_provider_jmsjca.transports.capabilities import Capabilities
    from airflow_provider_jmsjca.transports.settings import connection_settings
    from airflow_provider_jmsjca.transports.stomp.dialects import register
    from airflow_provider_jmsjca.transports.stomp.dialects.generic import GenericDialect
    from airflow_provider_jmsjca.transports.stomp.dialects.settlement import Cumulative, Recovery, UnitKind
    from airflow_provider_jmsjca.triggers.activation import JmsActivationTrigger

__version__ = "0.1.0"

_MODULES: Final = {
    "core.activation": ("ActivationSpec",),
    "core.destination": ("Destination",),
    "core.message": ("BodyKind", "JmsMessage"),
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
    "engine.delivering.delivery": ("Delivery",),
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
    "hooks.async_jms": ("AsyncJmsHook",),
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
    "operators.acknowledge": ("JmsAcknowledgeOperator",),
    "operators.collect": ("JmsCollectOperator",),
    "operators.listen": ("JmsListenOperator",),
    "operators.publish": ("JmsPublishOperator",),
    "operators.replay": ("JmsReplayOperator",),
    "operators.request": ("JmsRequestOperator",),
    "operators.spark": ("JmsToSparkSubmitOperator",),
    "operators.spool": ("JmsSpoolMaintenanceOperator",),
    "sensors.jms": ("JmsSensor",),
    "spark.job": ("Batch",),
    "spark.schemas.schema_file": ("read_schema",),
    "store.base": (
        "ActivationKind",
        "ActivationOrder",
        "ActivationRun",
        "LimboSelection",
        "RunReport",
        "RunStatus",
        "WantedState",
    ),
    "store.sql.store": ("open_store",),
    "transports": ("connect",),
    "transports.base": ("ConnectionSettings", "Outgoing", "Subscription", "TlsSettings"),
    "transports.capabilities": ("Capabilities",),
    "transports.settings": ("connection_settings",),
    "transports.stomp.dialects": ("register",),
    "transports.stomp.dialects.generic": ("GenericDialect",),
    "transports.stomp.dialects.settlement": ("Cumulative", "Recovery", "UnitKind"),
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
    "AsyncJmsHook",
    "AuthenticationError",
    "Batch",
    "BatchInUseError",
    "BlockedByBrokerError",
    "BodyKind",
    "Capabilities",
    "CapabilityError",
    "ClientIdInUseError",
    "ConfigurationError",
    "ConnectionLostError",
    "ConnectionSettings",
    "Cumulative",
    "Delay",
    "Delete",
    "Delivery",
    "DeliveryStoppedError",
    "Destination",
    "FencedError",
    "GenericDialect",
    "GrowingDelay",
    "InDoubtError",
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
    "LimboSelection",
    "Move",
    "MoveKind",
    "MoveTarget",
    "NameSyntax",
    "Outgoing",
    "PermanentBrokerError",
    "PoisonMessageError",
    "Recovery",
    "RedeliveryHandling",
    "ReplyTimeoutError",
    "RunReport",
    "RunStatus",
    "Selector",
    "SpoolError",
    "StoreSchemaError",
    "Subscription",
    "TlsSettings",
    "TransientBrokerError",
    "TransientStoreError",
    "UnitKind",
    "WantedState",
    "activation_status",
    "connect",
    "connection_settings",
    "jms_listener_task",
    "jms_sensor_task",
    "list_activations",
    "open_store",
    "read_schema",
    "register",
    "request_activation_state",
    "resume_activations",
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
