from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509

from tests.servers.certificates import make_certificates


def test_they_are_made_once(tmp_path: Path) -> None:
    first = make_certificates(tmp_path, store_password="secret").certificate.read_bytes()
    assert make_certificates(tmp_path, store_password="secret").certificate.read_bytes() == first


@pytest.mark.parametrize("name", ["store.p12", "certificate.pem"])
@pytest.mark.parametrize("content", [b"", b"broken"])
def test_damaged_ones_are_made_anew(tmp_path: Path, name: str, content: bytes) -> None:
    make_certificates(tmp_path, store_password="secret")
    (tmp_path / name).write_bytes(content)
    files = make_certificates(tmp_path, store_password="secret")
    assert (tmp_path / name).read_bytes() != content
    x509.load_pem_x509_certificate(files.certificate.read_bytes())
