"""Keeps secrets out of what operators are given: Airflow stores and shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from airflow.sdk import Context

from airflow_provider_jmsjca.core.activation import refuse_secrets


class NoSecretsFromTemplates:
    """Part of an operator that names destinations: a template brings no secret into one of them.

    Attributes:
        destination_fields: Names of its arguments that hold a destination.
    """

    destination_fields: ClassVar[Sequence[str]] = ("destination",)

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        """Fill in templates; Airflow stores and shows what they become.

        Raises:
            ConfigurationError: A template brought a secret into a destination.
        """
        super().render_template_fields(context, jinja_env)  # type: ignore[misc]  # the operator's
        refuse_secrets(type(self).__name__, {name: getattr(self, name) for name in self.destination_fields})
