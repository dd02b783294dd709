"""Apache Artemis, from its binary archive."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from airflow_provider_jmsjca.errors import ConnectionLostError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.stomp.connection import StompConnection
from airflow_provider_jmsjca.transports.stomp.management import BROKER, ManagementControl
from tests.servers.artifacts import fetch, unpack
from tests.servers.broker import USER, Broker
from tests.servers.java import broker_java, find_java
from tests.servers.ports import HOST

VERSION = "2.56.0"
LOCK = Path(__file__).with_name(f"artemis-{VERSION}.lock")
_ROLE = "users"
_PERMISSIONS = (
    "createNonDurableQueue",
    "deleteNonDurableQueue",
    "createDurableQueue",
    "deleteDurableQueue",
    "createAddress",
    "deleteAddress",
    "consume",
    "browse",
    "send",
    "manage",
    "view",
    "edit",
)

# As `artemis create` writes it (no default-address-routing-type, no prefixes on the STOMP acceptor), so that
# tests see what users see, but for one thing: max-delivery-attempts is -1, not 10. Each connection a kill
# test breaks counts as an attempt, and no message may go to the DLQ behind the back of the code under test.
# Addresses `full.…` block producers above 10,000 bytes.
# max-disk-usage 99: on a disk fuller than the usual 90 % the broker would block every producer.
_CONFIGURATION = """\
<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>jmsjca</name>
    <persistence-enabled>true</persistence-enabled>
    <journal-type>NIO</journal-type>
    <journal-file-size>10M</journal-file-size>
    <journal-min-files>2</journal-min-files>
    <journal-pool-files>10</journal-pool-files>
    <paging-directory>data/paging</paging-directory>
    <bindings-directory>data/bindings</bindings-directory>
    <journal-directory>data/journal</journal-directory>
    <large-messages-directory>data/large</large-messages-directory>
    <global-max-size>100M</global-max-size>
    <max-disk-usage>99</max-disk-usage>
    <critical-analyzer>false</critical-analyzer>
    <acceptors>
      <acceptor name="stomp">tcp://{host}:{stomp}?protocols=STOMP</acceptor>
      <acceptor name="stomps">tcp://{host}:{stomps}?protocols=STOMP;sslEnabled=true;keyStorePath={store};\
keyStoreType=PKCS12;keyStorePassword={store_password}</acceptor>
      <acceptor name="all">tcp://{host}:{core}?protocols=CORE,OPENWIRE,AMQP</acceptor>
    </acceptors>
    <security-settings><security-setting match="#">
      {permissions}
    </security-setting><security-setting match="forbidden.#">
      <permission type="consume" roles="nobody"/>
    </security-setting></security-settings>
    <address-settings><address-setting match="#">
      <dead-letter-address>DLQ</dead-letter-address>
      <expiry-address>ExpiryQueue</expiry-address>
      <redelivery-delay>0</redelivery-delay>
      <max-delivery-attempts>-1</max-delivery-attempts>
      <address-full-policy>PAGE</address-full-policy>
      <auto-create-queues>true</auto-create-queues>
      <auto-create-addresses>true</auto-create-addresses>
    </address-setting><address-setting match="full.#">
      <max-size-bytes>10000</max-size-bytes>
      <address-full-policy>BLOCK</address-full-policy>
    </address-setting></address-settings>
    <addresses>
      <address name="DLQ"><anycast><queue name="DLQ"/></anycast></address>
      <address name="ExpiryQueue"><anycast><queue name="ExpiryQueue"/></anycast></address>
    </addresses>
  </core>
</configuration>
"""
_BOOTSTRAP = """\
<broker xmlns="http://activemq.apache.org/schema">
  <jaas-security domain="activemq"/>
  <server configuration="${artemis.URI.instance}/etc/broker.xml"/>
</broker>
"""
_LOGIN = """\
activemq {
  org.apache.activemq.artemis.spi.core.security.jaas.PropertiesLoginModule required
    org.apache.activemq.jaas.properties.user="artemis-users.properties"
    org.apache.activemq.jaas.properties.role="artemis-roles.properties";
};
"""


class Artemis(Broker):
    """Apache Artemis; its third port `core` takes CORE, OpenWire and AMQP clients."""

    name: ClassVar[str] = "artemis"
    port_names: ClassVar[tuple[str, ...]] = ("stomp", "stomps", "core")

    def delete_queue(self, queue: str) -> None:
        """Delete a queue over the management address."""
        connection = connect(self.settings())
        assert isinstance(connection, StompConnection)
        # Artemis now and then closes the connection that asked, once the queue is gone.
        with (
            contextlib.suppress(ConnectionLostError),
            ManagementControl(connection.link, BROKER, 30) as broker,
        ):
            broker.call("destroyQueue", queue, True)
        connection.close()

    def fetch(self) -> None:
        """Download and unpack the archive, and make sure that there is a Java."""
        find_java()
        self.home()

    @staticmethod
    def home() -> Path:
        """Return the unpacked archive."""
        (archive,) = fetch(LOCK)
        return unpack(archive)

    def _prepare(self) -> None:
        certificates = self._certificates()
        permissions = (f'<permission type="{name}" roles="{_ROLE}"/>' for name in _PERMISSIONS)
        self._write(
            "etc/broker.xml",
            _CONFIGURATION.format(
                host=HOST,
                store=certificates.store,
                store_password=certificates.store_password,
                permissions="\n      ".join(permissions),
                **self.ports,
            ),
            secret=True,
        )
        self._write("etc/bootstrap.xml", _BOOTSTRAP)
        self._write("etc/management.xml", '<management-context xmlns="http://activemq.apache.org/schema"/>\n')
        self._write("etc/login.config", _LOGIN)
        self._write("etc/artemis-users.properties", f"{USER} = {self.password}\n", secret=True)
        self._write("etc/artemis-roles.properties", f"{_ROLE} = {USER}\n")

    def _command(self) -> Sequence[str | Path]:
        home = self.home()
        return [
            *broker_java("512m"),
            "-cp",
            home / "lib" / "artemis-boot.jar",
            f"-Dartemis.home={home}",
            f"-Dartemis.instance={self.folder}",
            f"-Dartemis.instance.etc={self.folder}/etc",
            f"-Ddata.dir={self.folder}/data",
            f"-Djava.security.auth.login.config={self.folder}/etc/login.config",
            "org.apache.activemq.artemis.boot.Artemis",
            "run",
        ]
