"""Links from a task in Airflow's web interface to its batch, to its dead letters and to Spark.

Airflow requests the links when a task ends, in the task's process, and stores them as XComs. Its web
interface shows them to every user with access to the task. An empty link is shown but disabled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.masking import is_secret
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.logs import safe_logger

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

_QUEUE: Final = "{queue}"
_BATCH: Final = "{batch_id}"
_AIRFLOW: Final = "http://localhost:8080/"

_log = safe_logger(__name__)


class JmsBatchLink(BaseOperatorLink):
    """A link to the batch of a task.

    The link leads to the page that the option `[jmsjca] batch_url` defines. Without the option, it leads to
    the task's XComs in Airflow, which contain the address of the manifest and the numbers of messages. The
    link is empty if the task has no batch, or if it failed and `batch_url` is not set.
    """

    name = "JMS batch"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """Return the address of the batch; empty if there is none."""
        batch_id, finished = operator.linked_batch
        template = conf.get("jmsjca", "batch_url", fallback="")
        if batch_id is None:
            return ""
        if template:
            return _filled("batch_url of [jmsjca]", template, _BATCH, batch_id)
        return _xcoms(ti_key) if finished else ""


class JmsDeadLettersLink(BaseOperatorLink):
    """A link to the queue that received dead letters of a task, in the broker's console.

    The connection's `console_url` defines the page. The link is empty without a `console_url`, if the task
    has sent no dead letters, or if they went to a topic.
    """

    name = "JMS dead letters"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """Return the address of the queue's page; empty if there is none."""
        del ti_key
        address: str = operator.linked_dead_letters
        return address


class JmsSparkUiLink(BaseOperatorLink):
    """A link to the web page of the Spark application, as soon as the Spark driver reports its address."""

    name = "Spark UI"

    @property
    def xcom_key(self) -> str:
        """The key of the XCom; the task sets it while the job runs."""
        return "spark_ui"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """Return the address of Spark's web page; empty if there is none."""
        del ti_key
        address: str = operator.linked_spark_ui
        return address


def console_address(jms_conn_id: str, template: object, destination: Destination) -> str:
    """Return the console page of a queue; empty for a topic, or without a `console_url`.

    Args:
        jms_conn_id: The Airflow connection, for the log.
        template: The effective `console_url`.
        destination: The queue.
    """
    if not isinstance(template, str) or not template or destination.kind is not DestinationKind.QUEUE:
        return ""
    return _filled(f"console_url of connection {jms_conn_id!r}", template, _QUEUE, destination.name)


def _filled(title: str, template: str, place: str, name: str) -> str:
    """Return the address that a template gives for a name; warn and return "" if the template is invalid.

    Args:
        title: Option with the template, for the log.
        template: The template.
        place: Placeholder in the template, which the name replaces.
        name: Name of a batch or queue.
    """
    try:
        _check(title, template, place)
    except ConfigurationError as error:
        _log.warning("No link: %s", error)
        return ""
    return template.replace(place, quote(name, safe=""))


def _check(title: str, template: str, place: str) -> None:
    """Refuse addresses that are unsafe for a browser, or hold a secret.

    Raises:
        ConfigurationError: The address is unsafe; the error doesn't contain it, because it may hold a secret.
    """
    expected = f"expected http:// or https:// and a host, with {place} for the name"
    try:
        parts = urlsplit(template)
    except ValueError as error:
        raise ConfigurationError(f"{title} is not a valid address ({error}); {expected}") from error
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise ConfigurationError(f"{title} is not the address of a web page; {expected}")
    if place not in template:
        raise ConfigurationError(f"{title} doesn't contain {place}; {expected}")
    if place in parts.netloc:
        raise ConfigurationError(f"{title} has {place} in its host; {expected} after the host")
    query = (*parse_qsl(parts.query), *parse_qsl(parts.fragment.partition("?")[2]))
    if "@" in parts.netloc or any(is_secret(key) for key, _ in query):
        raise ConfigurationError(
            f"{title} contains a user or a secret, which all users would see; leave it out, the console "
            "asks for it"
        )


def _xcoms(ti_key: TaskInstanceKey) -> str:
    """Return the address at which Airflow shows the XComs of a task instance."""
    index = ti_key.map_index
    parts = ["dags", ti_key.dag_id, "runs", ti_key.run_id, "tasks", ti_key.task_id]
    if index is not None and index >= 0:
        parts += ["mapped", str(index)]
    path = "/".join(quote(part, safe="") for part in (*parts, "xcom"))
    return f"{conf.get('api', 'base_url', fallback=_AIRFLOW).rstrip('/')}/{path}"
