"""The broker that receives a login, and a check whether sending it to another broker is less safe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_jmsjca.core.configuration.url import DEFAULT_PORTS, ConnectionUrl, Host, host_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """The broker that a login is sent to.

    Attributes:
        url: URL of the broker.
        verify: Whether the broker's certificate is checked, if the URL has TLS.
        ca_file: PEM file of the certificates to trust; `None` means the system's.
        server_name: Name to expect in the broker's certificate; `None` means the name of the host.
    """

    url: ConnectionUrl
    verify: bool
    ca_file: str | None
    server_name: str | None

    def differences(self, intended: Recipient) -> Iterator[tuple[str, str]]:
        """Yield the ways in which a login is less safe at this recipient than at the intended one.

        Fewer hosts, additional TLS or additional checks are not reported.

        Args:
            intended: The intended recipient of the login.

        Returns:
            For each difference, the option that causes the difference, and a description such as `has no
            TLS`.
        """
        yield from self._other_endpoints(intended)
        if intended.url.encrypted and not self.url.encrypted:
            yield "connection_url", f"has no TLS ({self.url.scheme}://)"
        if self.url.encrypted and intended.verify and not self.verify:
            yield "verify", "doesn't check the broker's certificate (verify)"
        if self._checked and intended._checked:
            yield from self._other_certificate(intended)

    @property
    def _checked(self) -> bool:
        return self.url.encrypted and self.verify

    @property
    def _expected(self) -> set[tuple[str, str]]:
        """Each host with the name that its certificate must have."""
        return {(host, (self.server_name or host).lower()) for host, _ in self.url.endpoints}

    def _other_endpoints(self, intended: Recipient) -> Iterator[tuple[str, str]]:
        others = self.url.endpoints - intended._endpoints_for(self)
        known = {host for host, _ in intended.url.endpoints}
        hosts = sorted({host for host, _ in others} - known)
        ports = sorted(host_text(host, port) for host, port in others if host in known)
        if hosts:
            yield "connection_url", f"names another host, {', '.join(hosts)}"
        if ports:
            yield "connection_url", f"names another port, {', '.join(ports)}"

    def _endpoints_for(self, other: Recipient) -> frozenset[Host]:
        """Return the hosts and ports to which the login may be sent.

        If this recipient is without TLS and `other` has TLS, the default TLS port counts as equal to the
        default plain port. This is safe, because a server on the TLS port must present a certificate that
        this recipient's settings accept too.

        Args:
            other: The recipient that is compared with this one.
        """
        endpoints = self.url.endpoints
        same = (self.ca_file, self.server_name) == (other.ca_file, other.server_name)
        plain = DEFAULT_PORTS.get(self.url.scheme)
        if self.url.encrypted or not (other._checked and same) or plain is None:
            return endpoints
        encrypted = DEFAULT_PORTS.get(other.url.scheme)
        return endpoints | {(host, encrypted) for host, port in endpoints if port == plain}

    def _other_certificate(self, intended: Recipient) -> Iterator[tuple[str, str]]:
        if self.ca_file != intended.ca_file:
            trusted, before = (each or "the system's" for each in (self.ca_file, intended.ca_file))
            yield "ca_file", f"trusts {trusted}, not {before} (ca_file)"
        expected = intended._expected
        known = {host for host, _ in expected}
        names = {name for host, name in self._expected - expected if host in known}
        if names:
            yield (
                "server_name",
                f"expects {', '.join(sorted(names))} in the broker's certificate (server_name)",
            )
