"""Options of a data source for its broker and user. Secrets can't be options, because Spark shows options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from airflow_provider_jmsjca.core.configuration.precedence import Layer, resolve
from airflow_provider_jmsjca.core.masking import masked_text
from airflow_provider_jmsjca.core.options import Level
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.data_sources.given_options import GivenOptions
from airflow_provider_jmsjca.transports.base import ConnectionSettings
from airflow_provider_jmsjca.transports.settings import to_connection_settings

BROKER_OPTIONS: Final = ("url", "username", "passwordFile", "passwordEnv", "clientId")


class BrokerOptions:
    """The options for a connection. The password is read only when `settings` is called, and is not kept.

    Raises:
        ConfigurationError: The URL is missing, or an option holds a secret.
    """

    def __init__(self, source: str, options: GivenOptions) -> None:
        self._source = source
        self.url = options.required("url", "stomp://broker:61613")
        shown = {name: options.text(name) for name in BROKER_OPTIONS}
        faults = [
            f"{source}: option {name!r} holds a secret, which Spark shows in plans and logs; expected "
            "username, and passwordFile or passwordEnv"
            for name, text in shown.items()
            if text is not None and masked_text(text) != text
        ]
        if faults:
            raise ConfigurationError(faults)
        self._username = options.text("username")
        self._password_file, self._password_env = options.text("passwordFile"), options.text("passwordEnv")
        self._client_id = options.text("clientId")

    def settings(self, client_id: str | None = None) -> ConnectionSettings:
        """Return the connection settings, with the password.

        Args:
            client_id: JMS client id if the options name none.

        Raises:
            ConfigurationError: The password isn't at the configured place, or an option is invalid.
        """
        fields = {
            "connection_url": self.url,
            "username": self._username,
            "password": self._password(),
            "client_id": self._client_id or client_id,
        }
        layer = Layer(level=Level.CONNECTION_FACTORY, source=f"format {self._source}", fields=fields)
        return to_connection_settings(resolve([layer]))

    def _password(self) -> str | None:
        return secret_from(self._source, "password", file=self._password_file, variable=self._password_env)


def secret_from(source: str, name: str, *, file: str | None, variable: str | None) -> str | None:
    """Return a secret from a file or an environment variable; `None` if neither is named.

    Args:
        source: Format of the data source, for errors.
        name: Name of the secret; its options are `<name>File` and `<name>Env`.
        file: Path of the file that holds the secret; takes precedence over `variable`.
        variable: Name of the environment variable that holds the secret.

    Raises:
        ConfigurationError: The file can't be read, or the variable isn't set.
    """
    if file is not None:
        try:
            return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise ConfigurationError(f"{source}: {name}File {file}: {error.strerror}") from error
    if variable is not None and variable not in os.environ:
        raise ConfigurationError(
            f"{source}: {name}Env: no environment variable {variable!r} in this process of Spark; "
            f"expected it to be set before Spark starts, or {name}File"
        )
    return None if variable is None else os.environ[variable]
