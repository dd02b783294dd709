"""Certificates for TLS listeners, made on the spot: an authority, and a certificate for this machine."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

_LIFE = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Files of one server.

    Attributes:
        authority: PEM certificate a client has to trust.
        certificate: PEM certificate of the server, for `localhost` and `127.0.0.1`.
        key: Its PEM key, not encrypted.
        store: Both and the authority as PKCS12, for Java.
        store_password: Password of the store.
    """

    authority: Path
    certificate: Path
    key: Path
    store: Path
    store_password: str


def make_certificates(folder: Path, *, store_password: str) -> Certificates:
    """Return the certificates in the folder; made anew if damaged or about to end."""
    files = Certificates(
        authority=folder / "authority.pem",
        certificate=folder / "certificate.pem",
        key=folder / "key.pem",
        store=folder / "store.p12",
        store_password=store_password,
    )
    # The store is written last: where it is, all are.
    if files.store.exists() and _usable(files):
        return files
    folder.mkdir(parents=True, exist_ok=True)
    now = dt.datetime.now(dt.UTC)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "jmsjca test authority")])
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(authority_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
    )
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    certificate = (
        _builder(subject, authority_name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    files.authority.write_bytes(authority.public_bytes(pem))
    files.certificate.write_bytes(certificate.public_bytes(pem))
    _write_secret(
        files.key,
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    _write_secret(
        files.store,
        pkcs12.serialize_key_and_certificates(
            b"server",
            key,
            certificate,
            [authority],
            serialization.BestAvailableEncryption(store_password.encode()),
        ),
    )
    return files


def _usable(files: Certificates) -> bool:
    try:
        pkcs12.load_key_and_certificates(files.store.read_bytes(), files.store_password.encode())
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    except (OSError, ValueError):
        return False
    return certificate.not_valid_after_utc > dt.datetime.now(dt.UTC) + dt.timedelta(days=1)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _LIFE)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_secret(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(content)
