from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_jmsjca.transports.base import TlsSettings
from tests.servers.activemq import ActiveMQClassic
from tests.servers.broker import RunningBroker
from tests.servers.errors import ServerError


def test_settings_and_url_of_our_own(tmp_path: Path) -> None:
    broker = ActiveMQClassic(tmp_path)
    plain, secured = broker.settings(), broker.settings(tls=True, connect_timeout=timedelta(seconds=3))
    assert plain.scheme == "stomp"
    assert plain.hosts == (("127.0.0.1", broker.ports["stomp"]),)
    assert (plain.username, plain.password, plain.tls) == ("jmsjca", broker.password, None)
    assert secured.scheme == "stomp+ssl"
    assert secured.hosts == (("127.0.0.1", broker.ports["stomps"]),)
    assert secured.tls == TlsSettings(ca_file=str(tmp_path / "tls" / "authority.pem"))
    assert secured.connect_timeout == timedelta(seconds=3)
    assert broker.url(tls=True) == f"stomp+ssl://jmsjca:{broker.password}@127.0.0.1:{broker.ports['stomps']}"


def test_running_broker_is_read_from_the_environment() -> None:
    broker = RunningBroker(
        "artemis",
        {
            "JMSJCA_TEST_ARTEMIS_URL": "stomp://me:p%40ss@example.org:61613",
            "JMSJCA_TEST_ARTEMIS_TLS_URL": "stomp+ssl://me:p%40ss@example.org:61614",
            "JMSJCA_TEST_ARTEMIS_CA": "/etc/ca.pem",
        },
    )
    assert not broker.controllable
    assert broker.settings().hosts == (("example.org", 61613),)
    assert broker.settings().password == "p@ss"
    assert broker.settings(tls=True).hosts == (("example.org", 61614),)
    assert broker.settings(tls=True).tls == TlsSettings(ca_file="/etc/ca.pem")
    assert broker.url() == "stomp://me:p%40ss@example.org:61613"
    with pytest.raises(
        ServerError, match="artemis is not ours to start or end: JMSJCA_TEST_ARTEMIS_URL names it"
    ):
        broker.kill()


def test_running_broker_without_tls_says_what_to_set() -> None:
    broker = RunningBroker("rabbitmq", {"JMSJCA_TEST_RABBITMQ_URL": "stomp://me:secret@example.org:61613"})
    with pytest.raises(ServerError, match="set JMSJCA_TEST_RABBITMQ_TLS_URL"):
        broker.settings(tls=True)


@pytest.mark.parametrize(
    ("url", "faults"),
    [
        ("stomp://example.org:61613", "no user, no password"),
        ("tcp://me:secret@example.org:61613", "the scheme is 'tcp'"),
        ("stomp://me:secret@example.org", "no port"),
        ("stomp://me:secret@example.org:http", "no port"),
    ],
)
def test_bad_url_names_all_faults_and_no_secret(url: str, faults: str) -> None:
    with pytest.raises(ServerError) as caught:
        RunningBroker("activemq", {"JMSJCA_TEST_ACTIVEMQ_URL": url})
    assert (
        str(caught.value) == f"JMSJCA_TEST_ACTIVEMQ_URL: expected stomp://user:password@host:port: {faults}"
    )
