"""The features that this package registers with Airflow."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_jmsjca.core.options import OPTIONS, Level, Option, OptionType

_PACKAGE = "airflow_provider_jmsjca"
_INTEGRATION = "Java Message Service (JMS)"
_JSON_TYPES = {
    OptionType.TEXT: "string",
    OptionType.INTEGER: "integer",
    OptionType.BOOLEAN: "boolean",
    OptionType.CHOICE: "string",
    OptionType.DURATION: "number",
    OptionType.LIST: "string",
    OptionType.PROPERTIES: "string",
}
_FIRST = ("tls", "ca_file", "client_id", "prefetch")
_LAST = ("options",)


def _modules(*names: str) -> list[dict[str, Any]]:
    return [
        {"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.{name}" for name in names]},
    ]


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata in the form of Airflow's `provider_info` schema.

    Airflow calls this function in each of its processes, so the module imports neither a broker's client nor
    Spark.
    """
    return {
        "package-name": "airflow-provider-jmsjca",
        "name": "JMS",
        "description": (
            "Message-driven DAGs, transactional consumption, redelivery handling and batches to Spark "
            "for JMS brokers: ActiveMQ Classic, Apache Artemis, RabbitMQ."
        ),
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["protocol"]}],
        "hooks": _modules("hooks.jms", "hooks.async_jms"),
        "operators": _modules(
            "operators.publish",
            "operators.collect",
            "operators.request",
            "operators.listen",
            "operators.spark",
            "operators.replay",
            "operators.spool",
            "operators.acknowledge",
        ),
        "sensors": _modules("sensors.jms"),
        "triggers": _modules(
            "triggers.activation", "triggers.listen", "triggers.spark_application", "triggers.ready"
        ),
        "queues": [f"{_PACKAGE}.queues.jms.JmsMessageQueueProvider"],
        "asset-uris": [
            {
                "schemes": ["jms"],
                "handler": f"{_PACKAGE}.assets.jms.sanitize_uri",
                "factory": f"{_PACKAGE}.assets.jms.create_asset",
                "to_openlineage_converter": f"{_PACKAGE}.assets.jms.convert_asset_to_openlineage",
            },
        ],
        "notifications": [f"{_PACKAGE}.notifications.jms.JmsNotifier"],
        "extra-links": [
            f"{_PACKAGE}.operators.web_links.JmsBatchLink",
            f"{_PACKAGE}.operators.web_links.JmsDeadLettersLink",
            f"{_PACKAGE}.operators.web_links.JmsSparkUiLink",
        ],
        "task-decorators": [
            {"class-name": f"{_PACKAGE}.decorators.listener.jms_listener_task", "name": "jms_listener"},
            {"class-name": f"{_PACKAGE}.decorators.sensor.jms_sensor_task", "name": "jms_sensor"},
        ],
        "connection-types": [
            {
                "connection-type": "jms",
                "hook-class-name": f"{_PACKAGE}.hooks.jms.JmsHook",
                "hook-name": "JMS",
                "conn-fields": connection_fields(),
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {
                        "host": "Host or URL",
                        "schema": "Virtual host",
                        "login": "User",
                        "extra": "Further options (JSON)",
                    },
                    "placeholders": {
                        "host": "broker.example.com, or stomp+ssl://first:61614,second:61614",
                        "port": "61613",
                        "schema": "/ (RabbitMQ)",
                    },
                },
            },
        ],
        "cli": [f"{_PACKAGE}.cli.definition.get_jms_cli_commands"],
        "config": {
            "jmsjca": {
                "description": "Defaults for every JMS connection of this installation.",
                "options": {
                    "options": {
                        "description": (
                            "Options that hold wherever a connection or an activation says nothing else, "
                            "as lines of `name=value`."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "JMSJCA.redeliveryhandling=3:move(queue:$.dlq)",
                        "default": "",
                    },
                    "spool_path": {
                        "description": (
                            "Directory for collected batches, seen by the workers and by Spark; or a URI of "
                            "an object store such as s3://aws_default@bucket/prefix, or of HDFS. "
                            "Empty means `jms-spool` under AIRFLOW_HOME."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "/data/jms-spool",
                        "default": "",
                    },
                    "spool_roots": {
                        "description": (
                            "Further spools, separated by commas, as paths or URIs like those of "
                            "`spool_path`. Messages that an event refers to are read from `spool_path` and "
                            "from these, and from nowhere else."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "/data/other-spool,s3://bucket/jms-spool",
                        "default": "",
                    },
                    "batch_url": {
                        "description": (
                            "Web page that shows a batch in the spool, with {batch_id} for its name: the "
                            "link of a task to its batch. Empty leads to the task's XComs."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "https://spool.example.com/jms-spool/{batch_id}/",
                        "default": "",
                    },
                    "reference_retention_days": {
                        "description": (
                            "For how many days messages are kept in the spool that events refer to."
                        ),
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": "7",
                        "default": "30",
                    },
                    "store_url": {
                        "description": (
                            "SQLAlchemy URL of the database that keeps attempts and ids over restarts: "
                            "SQLite for one host, PostgreSQL for several. Empty means the SQLite file "
                            "`jms-store.db` under AIRFLOW_HOME."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "postgresql://jms:password@db.example.com/jms",
                        "default": "",
                        "sensitive": True,
                    },
                    "state_messages_destination": {
                        "description": (
                            "Destination to which the states of DAG runs and task instances are published. "
                            "Empty publishes nothing."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "topic://airflow.states",
                        "default": "",
                    },
                    "state_messages_conn_id": {
                        "description": "Airflow connection over which states are published.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "jms_states",
                        "default": "jms_default",
                    },
                },
            },
        },
    }


def connection_fields() -> dict[str, dict[str, object]]:
    """Return the connection form's fields in the extra JSON, as Airflow's `conn-fields`.

    The most common fields come first. Options without effect in this package are left out; they are still
    read from the extra JSON.
    """
    shown = {
        option.name: _field(option)
        for option in OPTIONS
        if option.label and option.acts and option.allowed_at(Level.CONNECTION_FACTORY)
    }
    apart = {name: shown.pop(name) for name in (*_FIRST, *_LAST)}
    return {name: apart[name] for name in _FIRST} | shown | {name: apart[name] for name in _LAST}


def _field(option: Option) -> dict[str, object]:
    schema: dict[str, object] = {"type": [_JSON_TYPES[option.value_type], "null"]}
    if option.secret:
        schema["format"] = "password"
    elif option.value_type is OptionType.PROPERTIES:
        schema["format"] = "multiline"
    if option.minimum is not None:
        schema["minimum"] = option.minimum
    if option.choices is not None:
        schema["enum"] = [None, *map(str, option.choices)]
    if option.value_type is OptionType.BOOLEAN and option.default is not None:
        schema["default"] = option.default  # without it the form shows "off"
    return {"label": option.label, "description": _help(option), "schema": schema}


def _help(option: Option) -> str:
    default = option.default
    if isinstance(default, timedelta):
        shown = f"{default.total_seconds():g}"
    elif default is None:
        shown = option.shown_default
    else:
        shown = str(default).lower()
    return f"{option.meaning} Default: {shown}." if shown else option.meaning
