"""Keeps secrets out of the arguments of operators, which Airflow stores and shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial

from airflow_provider_jmsjca.core.activation import ActivationSpec, refuse_secrets


class _CheckedPartial(OperatorPartial):
    """Result of `partial`; refuses secrets in mapped arguments, which Airflow serializes in clear."""

    __slots__ = ()

    operator_class: Any  # one of `SecretsRefused`

    def expand(self, **mapped_kwargs: Any) -> MappedOperator:
        self._expand_called = True
        for name, values in mapped_kwargs.items():
            for value in values if isinstance(values, Sequence) and not isinstance(values, str) else ():
                self.operator_class.refuse_secrets({name: value})
        return super().expand(**mapped_kwargs)

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
        self._expand_called = True
        for each in kwargs if isinstance(kwargs, Sequence) else ():
            if isinstance(each, Mapping):
                self.operator_class.refuse_secrets(each)
        return super().expand_kwargs(kwargs, strict=strict)


class SecretsRefused:
    """Mixin that refuses secrets in an operator's arguments: given, mapped, or rendered from a template.

    Attributes:
        destination_fields: Names of the operator's arguments that hold a destination.
        spec_field: Name of the argument that holds an activation spec; `None` if there is none.
    """

    destination_fields: ClassVar[Sequence[str]] = ("destination",)
    spec_field: ClassVar[str | None] = None

    @classmethod
    def refuse_secrets(cls, given: Mapping[str, Any]) -> None:
        """Refuse secrets among arguments of the operator.

        Args:
            given: The arguments; only destinations and the spec are checked.

        Raises:
            ConfigurationError: Names every field that holds a secret, and the remedy.
        """
        refuse_secrets(cls.__name__, {name: given[name] for name in cls.destination_fields if name in given})
        if cls.spec_field is not None:
            refuse_secrets_in_spec(cls.__name__, given.get(cls.spec_field))

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Return the operator for Airflow to map over, as `BaseOperator.partial`.

        Raises:
            ConfigurationError: An argument holds a secret. Mapped arguments are checked when they are
                expanded.
        """
        cls.refuse_secrets(kwargs)
        made = super().partial(**kwargs)  # type: ignore[misc]  # the operator's
        made._expand_called = True  # noqa: SLF001  # the other one is expanded in its place
        return _CheckedPartial(operator_class=made.operator_class, kwargs=made.kwargs, params=made.params)

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        """Render templates, and refuse secrets in them, because Airflow stores and shows rendered texts.

        Raises:
            ConfigurationError: A template brought a secret into a destination or the spec.
        """
        super().render_template_fields(context, jinja_env)  # type: ignore[misc]  # the operator's
        self.refuse_secrets(vars(self))


def refuse_secrets_in_spec(where: str, spec: object) -> None:
    """Refuse a spec that holds a secret.

    Args:
        where: Name of the operator or decorator, for the error.
        spec: The given value; anything but a spec or a mapping is checked later, by the task.

    Raises:
        ConfigurationError: Names every field that holds a secret, and the remedy.
    """
    if isinstance(spec, ActivationSpec):
        spec = spec.layer().fields
    if isinstance(spec, Mapping):
        refuse_secrets(where, spec)
