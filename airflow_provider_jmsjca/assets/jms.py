"""Asset URIs `jms://BROKER/queue/NAME`: creation, normalization, and lineage of tasks."""

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
        virtual_host: The broker's virtual host, if it isn't `/`.
        extra: The asset's `extra`.

    Raises:
        ConfigurationError: The destination or the address is invalid.
    """
    uri = DestinationUri(
        authority=broker, destination=Destination.parse(destination), virtual_host=virtual_host
    )
    return Asset(uri=str(uri.normalized()), extra=extra or {})


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return the normal form of a URI; Airflow calls this for each asset.

    Raises:
        ConfigurationError: The URI isn't `jms://BROKER/queue/NAME` or `jms://BROKER/topic/NAME`. The error is
            also a `ValueError`.
    """
    return urlsplit(str(DestinationUri.parse(uri.geturl()).normalized()))


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Dataset:  # noqa: ARG001  # Airflow's signature
    """Return the OpenLineage dataset of an asset: the broker is its namespace, `queue/NAME` its name."""
    from openlineage.client.event_v2 import Dataset  # noqa: PLC0415  # only where OpenLineage is installed

    uri = DestinationUri.parse(str(asset.uri)).normalized()
    return Dataset(namespace=uri.broker, name=uri.name)


def note_input(hook: BaseHook, settings: ConnectionSettings, destination: Destination) -> None:
    """Record for lineage that the running task reads a destination; does nothing if lineage is off.

    Args:
        hook: The hook that the task uses.
        settings: The connection settings; the first host represents the broker in the URI. Without a host
            there is no URI, and nothing is recorded.
        destination: The destination.
    """
    if not settings.hosts:
        return
    get_hook_lineage_collector().add_input_asset(
        hook, scheme=SCHEME, asset_kwargs=_asset_arguments(settings, destination)
    )


def note_output(hook: BaseHook, settings: ConnectionSettings, destination: Destination) -> None:
    """Record for lineage that the running task writes to a destination; does nothing if lineage is off.

    The arguments are those of `note_input`.
    """
    if not settings.hosts:
        return
    get_hook_lineage_collector().add_output_asset(
        hook, scheme=SCHEME, asset_kwargs=_asset_arguments(settings, destination)
    )


def note_table(hook: BaseHook, table: str) -> None:
    """Record for lineage that the running task writes to a table; ignores a name without a path.

    Args:
        hook: The hook that the task uses.
        table: Path or URI of the table's folder.
    """
    scheme, separator, rest = table.partition(":/")
    if table.startswith("/"):
        scheme, separator, rest = "file", ":/", table.lstrip("/")
    if not separator:
        return
    authority_and_path = rest.lstrip("/") if scheme != "file" else f"/{rest.lstrip('/')}"
    # Unescaped, either character would end the path of the URI.
    uri = f"{scheme}://{authority_and_path}".replace("?", "%3F").replace("#", "%23")
    try:
        get_hook_lineage_collector().add_output_asset(hook, uri=uri)
    except ValueError as error:  # raised by another provider's handler of this scheme
        _log.warning("No lineage for the table %s: %s", table, error)


def _asset_arguments(settings: ConnectionSettings, destination: Destination) -> dict[str, Any]:
    host, port = settings.hosts[0]
    address = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return {
        "broker": address if port is None else f"{address}:{port}",
        "destination": str(destination),
        "virtual_host": settings.virtual_host,
    }
