"""RabbitMQ, from the Debian package."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import httpx

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Subscription
from tests.servers.broker import Broker
from tests.servers.debian import require_package
from tests.servers.errors import ServerError
from tests.servers.ports import HOST, accepts

# Not the one on PATH, which is a wrapper that changes to a user and folder of the package's own.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_CONTROL = PROGRAM.with_name("rabbitmqctl")

# What it needs for that, with a wide margin.
_ON_DISK_SECONDS = 5.0
_ERLANG = "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none"
_CONFIGURATION = """\
listeners.tcp.1 = {host}:{amqp}
stomp.listeners.tcp.1 = {host}:{stomp}
stomp.listeners.ssl.1 = {host}:{stomps}
ssl_options.cacertfile = {authority}
ssl_options.certfile = {certificate}
ssl_options.keyfile = {key}
ssl_options.verify = verify_none
ssl_options.fail_if_no_peer_cert = false
default_user = {username}
default_pass = {password}
loopback_users = none
management.tcp.ip = {host}
management.tcp.port = {management}
disk_free_limit.absolute = 50MB
"""


class RabbitMQ(Broker):
    """RabbitMQ with its STOMP plugin; the other ports are for AMQP and for Erlang's own traffic."""

    name: ClassVar[str] = "rabbitmq"
    port_names: ClassVar[tuple[str, ...]] = ("stomp", "stomps", "amqp", "management", "distribution", "epmd")

    def put_on_disk(self, *queues: str) -> None:
        """Make queues, and wait until they are written, for it confirms their messages before that."""
        connection = connect(self.settings())
        for queue in queues:
            connection.consume(Subscription(destination=Destination.queue(queue)), lambda _: None).close()
        connection.close()
        time.sleep(_ON_DISK_SECONDS)

    def delete_queue(self, queue: str) -> None:
        """Delete a queue over the HTTP API."""
        httpx.delete(
            f"http://{HOST}:{self.ports['management']}/api/queues/%2F/{quote(queue, safe='')}",
            auth=(self.username, self.password),
            timeout=30,
        ).raise_for_status()

    def raise_alarm(self) -> None:
        """Raise the memory alarm: from now on the broker reads nothing from connections that send."""
        self._limit_memory("0.000001")

    def clear_alarm(self) -> None:
        """Clear the memory alarm."""
        self._limit_memory("0.4")

    def _limit_memory(self, fraction: str) -> None:
        environment = dict(self._environment())
        subprocess.run(
            [_CONTROL, "-n", environment["RABBITMQ_NODENAME"], "set_vm_memory_high_watermark", fraction],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=120,
        )

    def fetch(self) -> None:
        """Install the package."""
        require_package("rabbitmq-server", PROGRAM)

    def _prepare(self) -> None:
        require_package("rabbitmq-server", PROGRAM)
        certificates = self._certificates()
        (self.folder / "home").mkdir(exist_ok=True)
        self._write("enabled_plugins", "[rabbitmq_stomp,rabbitmq_management].\n")
        self._write(
            "rabbitmq.conf",
            _CONFIGURATION.format(
                host=HOST,
                authority=certificates.authority,
                certificate=certificates.certificate,
                key=certificates.key,
                username=self.username,
                password=self.password,
                **self.ports,
            ),
            secret=True,
        )

    def _start_companions(self) -> None:
        # Started by the node it would become a daemon that outlives it.
        self._run("epmd", ["epmd", "-port", str(self.ports["epmd"]), "-address", HOST])
        end = time.monotonic() + 10
        while not accepts(self.ports["epmd"]):
            if time.monotonic() > end or not self._processes["epmd"].alive:
                self._end_companions()
                raise ServerError(
                    f"{self.name}: epmd does not answer on port {self.ports['epmd']}" + self._cause()
                )
            time.sleep(0.02)

    def _command(self) -> Sequence[str | Path]:
        return [PROGRAM]

    def _environment(self) -> Mapping[str, str]:
        folder = self.folder
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": f"{folder}/home",
            "LANG": "C.UTF-8",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_NODENAME": "jmsjca@localhost",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{folder}/generated",
            "RABBITMQ_SCHEMA_DIR": f"{folder}/schema",
            "RABBITMQ_FEATURE_FLAGS_FILE": f"{folder}/feature_flags",
            "RABBITMQ_DIST_PORT": str(self.ports["distribution"]),
            "ERL_EPMD_PORT": str(self.ports["epmd"]),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG,
        }
