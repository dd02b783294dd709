"""Asset URIs `jms://BROKER/queue/NAME`: checked, made, and noted as what a task read and wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from airflow.sdk import Asset
from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.lineage import get_hook_lineage_collector

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.destination_uri import SCHEME, DestinationUri
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import ConnectionSettings

if TYPE_CHECKING:
    from openlineage.client.event_v2 import Dataset

_log = safe_logger(__name__)


def create_asset(
    *, broker: str, destination: str, virtual_host: str | None = None, extra: dict[str, Any] | None = None
) -> Asset:
    """Return the asset for a destination of a broker.

    Args:
        broker: The broker's address: `orders.example.com`, or `orders.example.com:61614`.
        destination: `queue://name`, `topic://name`, or the name of a queue.
        virtual_host: Of the broker, where it isn't `/`.
        extra: What else the asset is to carry.

    Raises:
        ConfigurationError: The destination or the address can't be used.
    """
    uri = DestinationUri(
        authority=broker, destination=Destination.parse(destination), virtual_host=virtual_host
    )
    return Asset(uri=str(uri.normalized()), extra=extra or {})


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return the one form of all the forms in which a URI can be written; Airflow calls this for each asset.

    Raises:
        ConfigurationError: Also a ValueError: it isn't `jms://BROKER/queue/NAME` or `jms://BROKER/topic/NAME`.
    """
    return urlsplit(str(DestinationUri.parse(uri.geturl()).normalized()))


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Dataset:  # noqa: ARG001  # Airflow's signature
    """Return the OpenLineage dataset of an asset: the broker is its namespace, `queue/NAME` its name."""
    from openlineage.client.event_v2 import Dataset  # noqa: PLC0415  # only where OpenLineage is installed

    uri = DestinationUri.parse(str(asset.uri)).normalized()
    return Dataset(namespace=uri.broker, name=uri.name)


def note_input(hook: BaseHook, settings: ConnectionSettings, destination: Destination) -> None:
    """Note for lineage that the running task reads a destination; where nobody reads lineage, note nothing.

    Args:
        hook: What the task reads with.
        settings: Which broker: the first of its hosts stands for all.
        destination: What is read.
    """
    get_hook_lineage_collector().add_input_asset(
        hook, scheme=SCHEME, asset_kwargs=_asset_arguments(settings, destination)
    )


def note_output(hook: BaseHook, settings: ConnectionSettings, destination: Destination) -> None:
    """Note for lineage that the running task writes to a destination; arguments are those of `note_input`."""
    get_hook_lineage_collector().add_output_asset(
        hook, scheme=SCHEME, asset_kwargs=_asset_arguments(settings, destination)
    )


def note_table(hook: BaseHook, table: str) -> None:
    """Note for lineage that the running task writes to a table; a name without a path is known to Spark only.

    Args:
        hook: What the task reads with.
        table: Path or URI of the table's folder.
    """
    scheme, separator, rest = table.partition(":/")
    if table.startswith("/"):
        scheme, separator, rest = "file", ":/", table.lstrip("/")
    if not separator:
        return
    authority_and_path = rest.lstrip("/") if scheme != "file" else f"/{rest.lstrip('/')}"
    # A URI ends at either of them, and a path doesn't.
    uri = f"{scheme}://{authority_and_path}".replace("?", "%3F").replace("#", "%23")
    try:
        get_hook_lineage_collector().add_output_asset(hook, uri=uri)
    except ValueError as error:  # what the handler of another provider refuses
        _log.warning("No lineage for the table %s: %s", table, error)


def _asset_arguments(settings: ConnectionSettings, destination: Destination) -> dict[str, Any]:
    host, port = settings.hosts[0]
    address = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return {
        "broker": address if port is None else f"{address}:{port}",
        "destination": str(destination),
        "virtual_host": settings.virtual_host,
    }
