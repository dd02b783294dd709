from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_jmsjca import Destination, JmsError, TlsSettings
from airflow_provider_jmsjca import connect as open_connection
from tests.contract.transport.lab import Lab, StompLab, over_network
from tests.contract.transport.traffic import Connect, assert_left, publish
from tests.pace import at_most
from tests.servers.certificates import make_certificates

pytestmark = over_network


@pytest.fixture
def tls_lab(lab: Lab) -> StompLab:
    assert isinstance(lab, StompLab)
    return lab


def test_messages_travel_over_tls(tls_lab: StompLab, connect: Connect, queue: Destination) -> None:
    settings = tls_lab.settings(tls=True)
    bodies = publish(connect(settings=settings), queue, 3)
    assert_left(lambda: connect(settings=settings), queue, bodies)


def test_a_certificate_of_an_unknown_authority_is_refused(tls_lab: StompLab, tmp_path: Path) -> None:
    other = make_certificates(tmp_path, store_password="other")
    with pytest.raises(JmsError, match=r"(?i)certificate"):
        open_connection(replace(tls_lab.settings(tls=True), tls=TlsSettings(ca_file=str(other.authority))))


def test_a_certificate_for_another_name_is_refused(tls_lab: StompLab) -> None:
    settings = tls_lab.settings(tls=True)
    assert settings.tls is not None
    with pytest.raises(JmsError, match=r"(?i)certificate"):
        open_connection(replace(settings, tls=replace(settings.tls, server_name="elsewhere.example")))


def test_tls_to_a_plain_port_ends_within_the_connect_timeout(tls_lab: StompLab) -> None:
    settings = replace(
        tls_lab.settings(tls=True),
        hosts=tls_lab.settings().hosts,
        connect_timeout=timedelta(seconds=1),
    )
    began = time.monotonic()
    with pytest.raises(JmsError):
        open_connection(settings)
    assert time.monotonic() - began < 1 + at_most(1)
