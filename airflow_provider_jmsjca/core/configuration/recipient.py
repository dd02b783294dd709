"""Where a login goes and how the broker there is checked: whether another place will do as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_jmsjca.core.configuration.url import DEFAULT_PORTS, ConnectionUrl, Host, host_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """The broker that a login is sent to.

    Attributes:
        url: Where it is.
        verify: Whether its certificate is checked, where the URL has TLS.
        ca_file: PEM file of the certificates to trust; `None` means the system's.
        server_name: Name to expect in its certificate; `None` means the host connected to.
    """

    url: ConnectionUrl
    verify: bool
    ca_file: str | None
    server_name: str | None

    def differences(self, meant: Recipient) -> Iterator[tuple[str, str]]:
        """Yield in what a login would be worse off here than at the recipient it is meant for.

        Fewer hosts are no difference, and neither is TLS or a check that the other one lacks.

        Args:
            meant: The recipient that the login is meant for.

        Returns:
            For each difference the option that makes it, and what it does in words without a subject.
        """
        yield from self._elsewhere(meant)
        if meant.url.encrypted and not self.url.encrypted:
            yield "connection_url", f"has no TLS ({self.url.scheme}://)"
        if self.url.encrypted and meant.verify and not self.verify:
            yield "verify", "doesn't check the broker's certificate (verify)"
        if self._checked and meant._checked:
            yield from self._other_certificate(meant)

    @property
    def _checked(self) -> bool:
        return self.url.encrypted and self.verify

    @property
    def _expected(self) -> set[tuple[str, str]]:
        """Each host with the name that its certificate must have."""
        return {(host, (self.server_name or host).lower()) for host, _ in self.url.endpoints}

    def _elsewhere(self, meant: Recipient) -> Iterator[tuple[str, str]]:
        others = self.url.endpoints - meant._endpoints_for(self)
        known = {host for host, _ in meant.url.endpoints}
        hosts = sorted({host for host, _ in others} - known)
        ports = sorted(host_text(host, port) for host, port in others if host in known)
        if hosts:
            yield "connection_url", f"names another host, {', '.join(hosts)}"
        if ports:
            yield "connection_url", f"names another port, {', '.join(ports)}"

    def _endpoints_for(self, other: Recipient) -> frozenset[Host]:
        """Return hosts and ports; where `other` adds TLS, with the port of TLS beside the plain one.

        Who answers at the port of TLS has to show a certificate that the settings here accept too.
        """
        endpoints = self.url.endpoints
        same = (self.ca_file, self.server_name) == (other.ca_file, other.server_name)
        plain = DEFAULT_PORTS.get(self.url.scheme)
        if self.url.encrypted or not (other._checked and same) or plain is None:
            return endpoints
        encrypted = DEFAULT_PORTS.get(other.url.scheme)
        return endpoints | {(host, encrypted) for host, port in endpoints if port == plain}

    def _other_certificate(self, meant: Recipient) -> Iterator[tuple[str, str]]:
        if self.ca_file != meant.ca_file:
            trusted, before = (each or "the system's" for each in (self.ca_file, meant.ca_file))
            yield "ca_file", f"trusts {trusted}, not {before} (ca_file)"
        expected = meant._expected
        known = {host for host, _ in expected}
        names = {name for host, name in self._expected - expected if host in known}
        if names:
            yield (
                "server_name",
                f"expects {', '.join(sorted(names))} in the broker's certificate (server_name)",
            )
