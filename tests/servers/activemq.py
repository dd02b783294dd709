"""ActiveMQ Classic, from the jars of its lock file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tests.servers.artifacts import fetch
from tests.servers.broker import Broker
from tests.servers.java import broker_java, find_java
from tests.servers.ports import HOST

VERSION = "6.3.1"
LOCK = Path(__file__).with_name(f"activemq-classic-{VERSION}.lock")

# statisticsBrokerPlugin: queue depths over STOMP. schedulerSupport: delayed delivery.
# tcpNoDelay: without it an awaited receipt takes 44 ms. No persistJMSRedelivered: as in the broker's own
# configuration the flag doesn't outlive a crash; it would cost a write to the store for each delivery.
# Queues `narrow.…` show their first ten messages to a browse; others have no policy, and so no limit.
# The limits let a million messages of 1 KiB wait; the store starts small.
_CONFIGURATION = """\
<beans xmlns="http://www.springframework.org/schema/beans"
    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
    xsi:schemaLocation="http://www.springframework.org/schema/beans
      http://www.springframework.org/schema/beans/spring-beans.xsd
      http://activemq.apache.org/schema/core
      http://activemq.apache.org/schema/core/activemq-core.xsd">
  <bean class="org.springframework.beans.factory.config.PropertyPlaceholderConfigurer"/>
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="jmsjca" dataDirectory="${{folder}}/data"
      useJmx="false" schedulerSupport="true" useShutdownHook="true">
    <persistenceAdapter><kahaDB directory="${{folder}}/data/kahadb"/></persistenceAdapter>
    <plugins>
      <simpleAuthenticationPlugin anonymousAccessAllowed="false"><users>
        <authenticationUser username="{username}" password="{password}" groups="users"/>
      </users></simpleAuthenticationPlugin>
      <statisticsBrokerPlugin/>
    </plugins>
    <sslContext>
      <sslContext keyStore="file:{store}" keyStorePassword="{store_password}" keyStoreType="PKCS12"/>
    </sslContext>
    <systemUsage><systemUsage>
      <memoryUsage><memoryUsage limit="256 mb"/></memoryUsage>
      <storeUsage><storeUsage limit="8 gb"/></storeUsage>
      <tempUsage><tempUsage limit="1 gb"/></tempUsage>
      <jobSchedulerUsage><jobSchedulerUsage limit="1 gb"/></jobSchedulerUsage>
    </systemUsage></systemUsage>
    <destinationPolicy><policyMap><policyEntries>
      <policyEntry queue="narrow.&gt;" maxBrowsePageSize="10"/>
    </policyEntries></policyMap></destinationPolicy>
    <transportConnectors>
      <transportConnector name="stomp" uri="stomp://{host}:{stomp}?transport.tcpNoDelay=true"/>
      <transportConnector name="stomps" uri="stomp+ssl://{host}:{stomps}?transport.tcpNoDelay=true"/>
      <transportConnector name="openwire" uri="tcp://{host}:{openwire}?transport.tcpNoDelay=true"/>
    </transportConnectors>
  </broker>
</beans>
"""


class ActiveMQClassic(Broker):
    """ActiveMQ Classic; its third port `openwire` is for the Java client."""

    name: ClassVar[str] = "activemq"
    port_names: ClassVar[tuple[str, ...]] = ("stomp", "stomps", "openwire")
    heap = "512m"
    """Of its Java process; a million waiting messages don't fit into this."""

    def fetch(self) -> None:
        """Download the jars, and make sure that there is a Java."""
        find_java()
        self.jars()

    @staticmethod
    def jars() -> tuple[Path, ...]:
        """Return the broker's jars; the Java client is among them."""
        return fetch(LOCK)

    def _prepare(self) -> None:
        certificates = self._certificates()
        self._write(
            "activemq.xml",
            _CONFIGURATION.format(
                username=self.username,
                password=self.password,
                store=certificates.store,
                store_password=certificates.store_password,
                host=HOST,
                **self.ports,
            ),
            secret=True,
        )

    def _command(self) -> Sequence[str | Path]:
        return [
            *broker_java(self.heap),
            f"-Dfolder={self.folder}",
            "-cp",
            ":".join(map(str, self.jars())),
            "org.apache.activemq.console.command.ShellCommand",
            "start",
            f"xbean:file:{self.folder}/activemq.xml",
        ]
