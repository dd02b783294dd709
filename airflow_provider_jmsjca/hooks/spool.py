"""The folders of batches, the keys that tasks and queues have there, and access to object stores."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from airflow.sdk import Connection, Context
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.hooks.stored_connections import airflow_connection, undefined_text
from airflow_provider_jmsjca.hooks.task_failures import context_entry
from airflow_provider_jmsjca.spool.batch_id import TaskKey
from airflow_provider_jmsjca.spool.files import ObjectPath, SpoolPath
from airflow_provider_jmsjca.spool.files.objects import SCHEMES
from airflow_provider_jmsjca.spool.manifest import uri_to_path

_DEFAULT_RETENTION_DAYS = 30.0
# Keys of a connection's extra about an object store, and the client's names for them.
_EXTRA: Final[Mapping[str, Mapping[str, str]]] = {
    "s3": {
        "region_name": "aws_region",
        "endpoint_url": "aws_endpoint_url",
        "aws_session_token": "aws_session_token",
    },
    "gs": {"keyfile_dict": "google_service_account_key", "key_path": "google_service_account"},
    "abfs": {"sas_token": "azure_storage_sas_token"},
    "hdfs": {"use_ssl": "", "delegation_token": "webhdfs_delegation_token"},
}
_LOGIN: Final = {
    "s3": "aws_access_key_id", "gs": "", "abfs": "azure_storage_account_name", "hdfs": "hadoop_user_name",
}  # fmt: skip
_PASSWORD: Final = {
    "s3": "aws_secret_access_key", "gs": "", "abfs": "azure_storage_account_key", "hdfs": "",
}  # fmt: skip
_HDFS_PORT: Final = 9870
_DRIVER_ENVIRONMENTS: Final = ("yarn.appMasterEnv", "kubernetes.driverEnv")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def spool_path(given: str | Path | None = None) -> SpoolPath:
    """Return the directory of all batches.

    Args:
        given: A path or a URI. The URI names a folder (`file:///path`), a folder in an object store (such as
            `s3://aws_default@bucket/prefix`), or one in HDFS (`hdfs://webhdfs_default@namenode:8020/path`).
            The part before `@` names the Airflow connection with the credentials. Without that part, the
            credentials come from the environment. `None` or empty text: `[jmsjca] spool_path`, by default
            `jms-spool` under AIRFLOW_HOME.

    Raises:
        ConfigurationError: The URI has another scheme, or the value isn't text. Or the connection is missing
            or has unsupported settings.
    """
    if isinstance(given, Path):
        return given
    if given is not None and not isinstance(given, str):
        raise ConfigurationError(f"spool_path is {given!r}; expected a path or a URI")
    text = given or conf.get("jmsjca", "spool_path", fallback="")
    if not text:
        return Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "jms-spool"
    if not _SCHEME.match(text):
        return Path(text)
    try:
        if urlsplit(text).scheme in SCHEMES:
            return _object_path(text)
        return uri_to_path(text)
    except SpoolError as error:
        raise ConfigurationError(
            f"spool_path is {text!r}; expected a path or file:///... URI on a POSIX file system that worker, "
            "driver and executors see, such as NFS. Or s3://, gs:// or abfs:// and a bucket, or hdfs:// "
            "and a name node; other stores are not supported. In a URI '#', '?' and '%' are written as %23, "
            "%3F, %25"
        ) from error


def spool_roots() -> list[SpoolPath]:
    """Return the trusted spools of this installation: `[jmsjca] spool_path`, then `[jmsjca] spool_roots`.

    Files that an event or an XCom names are opened only below these directories.

    Raises:
        ConfigurationError: A directory can't be used; see `spool_path`.
    """
    further = conf.get("jmsjca", "spool_roots", fallback="") or ""
    named = (text.strip() for text in further.replace("\n", ",").split(","))
    return [spool_path(), *(spool_path(text) for text in named if text)]


def _object_path(text: str) -> ObjectPath:
    """Return a directory in an object store, with the credentials of the connection that the URI names."""
    scheme, netloc, path, *_ = urlsplit(text)
    conn_id, _, bucket = netloc.rpartition("@")
    store = "s3" if scheme.startswith("s3") else "abfs" if scheme.startswith("abfs") else scheme
    if not conn_id or (store == "abfs" and "." in bucket):  # abfs://container@account.dfs.core.windows.net
        return ObjectPath.parse(text)
    try:
        connection = airflow_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigurationError(
            f"spool_path is {text!r}: {undefined_text(conn_id)}. Or leave {conn_id}@ out to use the "
            "credentials of the environment"
        ) from error
    options = _store_options(store, conn_id, connection)
    if store == "abfs":
        account = options["azure_storage_account_name"]
        bucket = f"{bucket}@{account}.dfs.core.windows.net"
    return ObjectPath.parse(f"{scheme}://{bucket}{path}", options)


def _store_options(store: str, conn_id: str, connection: Connection) -> dict[str, str]:
    """Return the options for a store in an Airflow connection.

    Their names are those of the store's environment variables in lower case.

    Raises:
        ConfigurationError: The connection has an unsupported option, or lacks a required one.
    """
    extra = dict(connection.extra_dejson)
    known = _EXTRA[store]
    unknown = sorted(set(extra) - set(known))
    if unknown:
        raise ConfigurationError(
            f"connection {conn_id!r}: a spool can't use {', '.join(unknown)} of its extra; expected only "
            f"{', '.join(known)}. Or name no connection, to use the credentials of the environment"
        )
    if store == "hdfs" and (connection.password or connection.schema):
        raise ConfigurationError(
            f"connection {conn_id!r}: a spool can't use its password or schema; expected name nodes as its "
            "host, their HTTP port, and the user as its login. Gateways such as HttpFS and Knox aren't "
            "supported"
        )
    said: dict[str, Any] = {_LOGIN[store]: connection.login, _PASSWORD[store]: connection.password}
    said |= {known[name]: value for name, value in extra.items()}
    options = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in said.items()
        if name and value
    }
    if store == "hdfs" and connection.host:
        scheme = "https" if extra.get("use_ssl") else "http"
        port = connection.port or _HDFS_PORT
        hosts = (host.strip() for host in connection.host.split(","))
        options["webhdfs_url"] = ",".join(f"{scheme}://{host}:{port}" for host in hosts)
    if store == "abfs" and "azure_storage_account_name" not in options:
        raise ConfigurationError(f"connection {conn_id!r}: expected the storage account's name as its login")
    return options


def store_environment(place: SpoolPath) -> dict[str, str]:
    """Return the variables that give another process on this machine the credentials of a spool."""
    options = place.bucket.options if isinstance(place, ObjectPath) else {}
    return {name.upper(): value for name, value in options.items()}


def spark_properties(place: SpoolPath) -> dict[str, str]:
    """Return the Spark properties for access to the store of a spool; they contain no secret.

    Hadoop's S3 client detects the region only inside AWS, so a configured region is among the properties.
    With a configured endpoint, the client puts the bucket into the path of a URL, as this package does. A
    Spark driver on a cluster gets the addresses of HDFS in its environment.
    """
    environment = {**os.environ, **store_environment(place)}
    properties = {}
    if "AWS_ENDPOINT_URL" in environment:
        properties["spark.hadoop.fs.s3a.path.style.access"] = "true"
    if region := environment.get("AWS_REGION"):
        properties["spark.hadoop.fs.s3a.endpoint.region"] = region
    if addresses := environment.get("WEBHDFS_URL"):
        properties |= {f"spark.{kind}.WEBHDFS_URL": addresses for kind in _DRIVER_ENVIRONMENTS}
    return properties


def reference_retention() -> timedelta:
    """Return how long the spool keeps messages to which events refer.

    This is `[jmsjca] reference_retention_days`, by default 30 days.

    Raises:
        ConfigurationError: The setting isn't a number of days above 0.
    """
    text = conf.get("jmsjca", "reference_retention_days", fallback="") or _DEFAULT_RETENTION_DAYS
    try:
        found = timedelta(days=float(text))
    except (ValueError, OverflowError):
        found = timedelta(0)
    if found <= timedelta(0):
        raise ConfigurationError(
            f"[jmsjca] reference_retention_days is {text!r}; expected a number of days above 0"
        )
    return found


def task_key(context: Context) -> TaskKey:
    """Return the key of the task instance, which all its attempts share."""
    instance = context_entry(context, "ti")
    return TaskKey(
        dag_id=instance.dag_id,
        run_id=instance.run_id,
        task_id=instance.task_id,
        map_index=-1 if instance.map_index is None else instance.map_index,
    )


def known_ids_key(jms_conn_id: str, queue: Destination) -> str:
    """Return the key of a queue under which its batches share the ids of the messages that they have stored.

    Batches that compete for the messages of a queue need the same key, to recognise redelivered messages.
    """
    return f"{jms_conn_id} {queue}"
