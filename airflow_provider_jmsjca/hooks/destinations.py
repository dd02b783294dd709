"""Destinations on Airflow's side, including administered objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from airflow.sdk import Variable
from airflow.sdk.configuration import conf

from airflow_provider_jmsjca.core.configuration.administered import (
    LOOKUP,
    AdministeredObject,
    DestinationReference,
)
from airflow_provider_jmsjca.core.configuration.destination_options import reference_text
from airflow_provider_jmsjca.core.configuration.overruling import CLIENT_PROPERTIES
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.redelivery import Move, MoveKind, MoveTarget, RedeliveryHandling
from airflow_provider_jmsjca.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_jmsjca.core.activation import ActivationSpec

_PREFIX = "destination."
_REMEMBERED = 1000


def find_destination(text: str, *, variables: bool = True) -> Destination:
    """Return the destination that a text names; a bare name names a queue.

    `lookup://orders` names an administered object: the entry `destination.orders` of `[jmsjca]`, ignoring
    case (environment variables don't preserve it), else the Airflow variable `orders`. Either holds
    `queue://name`, `topic://name`, or JSON such as `{"type": "queue", "name": "q1234"}`.

    Args:
        text: The destination.
        variables: Whether to query Airflow variables, too. Don't do so in the triggerer's event loop, which
            the query would block.

    Raises:
        ConfigurationError: The text is not a destination, or not a string. Or the object is missing or can't
            be read.

    Source: J20, J85, J87, J88, J90, J91.
    """
    return _resolve(DestinationReference.parse(text, default=DestinationKind.QUEUE), variables=variables)


def cached_find_destination() -> Callable[[str], Destination]:
    """Return `find_destination` with a cache, because each Airflow variable costs a query."""
    return lru_cache(maxsize=_REMEMBERED)(find_destination)


def with_lookups(spec: ActivationSpec, *, variables: bool = True) -> ActivationSpec:
    """Return the spec with every reference to an administered object replaced by its destination.

    References are replaced in three places: the spec's destinations, the options that name further
    destinations, and the targets of the move in its redelivery handling. In such a target, `$` stands for the
    name of the spec's destination. If that is an object in a folder, the target is in this folder, too. For
    example, if the spec consumes `lookup://a/b/in`, the target `dlq_$` names the object `a/b/dlq_in`.

    Args:
        spec: The spec in force.
        variables: Whether to query Airflow variables, too; see `find_destination`.

    Raises:
        ConfigurationError: An object doesn't exist or can't be read. Or the spec has several destinations,
            and `$` in a target names a different object for each of them.

    Source: J50, J87, J140.
    """
    from airflow_provider_jmsjca.core.activation.rules import (  # noqa: PLC0415 - only callers with a spec load it
        SINGLE_DESTINATIONS,
    )

    changes: dict[str, object] = {}
    for name in SINGLE_DESTINATIONS:
        if (given := getattr(spec, name)) and (text := _looked_up_text(given, variables=variables)) != given:
            changes[name] = text
    dead_letters = tuple(_looked_up_text(each, variables=variables) for each in spec.dead_letter_destination)
    if dead_letters != spec.dead_letter_destination:
        changes["dead_letter_destination"] = dead_letters
    references = spec.destination_references
    if any(reference.lookup for reference in references):
        found = [_resolve(reference, variables=variables) for reference in references]
        changes["destination"] = [reference_text(each) for each in found]
        changes["destination_type"] = None
        changes["name"] = spec.name or spec.ejb_name or ", ".join(map(str, found))
    if (handling := _looked_up_moves(spec, references, variables=variables)) is not None:
        changes |= {**dict.fromkeys(CLIENT_PROPERTIES), "redelivery_handling": handling}
    return spec.replace(**changes) if changes else spec


def _looked_up_text(text: str, *, variables: bool) -> str:
    reference = DestinationReference.parse(text, default=DestinationKind.QUEUE)
    return reference_text(_resolve(reference, variables=variables)) if reference.lookup else text


def _looked_up_moves(
    spec: ActivationSpec, references: tuple[DestinationReference, ...], *, variables: bool
) -> str | None:
    """Return the redelivery handling with its targets looked up; `None` if there is nothing to look up."""
    actions = spec.redelivery.actions
    if spec.max_attempts is not None or not actions or not isinstance(move := actions[-1], Move):
        return None  # with `max_attempts` the dead-letter destinations replace the targets of the move
    for_each = {tuple(_target(target, each) for target in move.all_targets) for each in references}
    if not any(target.name.startswith(LOOKUP) for targets in for_each for target in targets):
        return None
    if len(for_each) > 1:
        raise ConfigurationError(
            f"redelivery_handling: the lookup {move} has a different target for each of {len(references)} "
            "destinations; expected a target without $, or an activation for each destination"
        )
    (targets,) = for_each
    changed = Move.to(move.at, [_looked_up_target(each, variables=variables) for each in targets])
    return str(RedeliveryHandling((*actions[:-1], changed)))


def _target(target: MoveTarget, reference: DestinationReference) -> MoveTarget:
    """Return the target with `$` filled in for messages of one destination.

    The name of the result begins with `lookup://` if it refers to an administered object.
    """
    kind = reference.kind or DestinationKind.QUEUE
    original = Destination(kind, f"{LOOKUP}{reference.name}" if reference.lookup else reference.name)
    found = MoveTarget.of(target.destination(original))
    is_open = target.kind is MoveKind.SAME and reference.kind is None
    return replace(found, kind=MoveKind.SAME) if is_open else found


def _looked_up_target(target: MoveTarget, *, variables: bool) -> MoveTarget:
    if not target.name.startswith(LOOKUP):
        return target
    kind = None if target.kind is MoveKind.SAME else DestinationKind(target.kind.value)
    name = target.name[len(LOOKUP) :]
    reference = DestinationReference(kind=kind, name=name, lookup=True, options=target.options)
    return MoveTarget.of(_resolve(reference, variables=variables))


def _resolve(reference: DestinationReference, *, variables: bool = True) -> Destination:
    if not reference.lookup:
        return reference.resolve({})
    given = _entry(reference.name)
    if given is not None:
        return reference.resolve({reference.name: AdministeredObject.parse(given)})
    given = Variable.get(reference.name, default=None) if variables else None
    return reference.resolve({} if given is None else {reference.name: _variable(reference.name, str(given))})


def _entry(name: str) -> str | None:
    """Return the entry of `[jmsjca]` that defines an object, ignoring case; `None` if there is no entry.

    If the names of several entries differ only in case, the entry with exactly this name counts.

    Raises:
        ConfigurationError: Such entries have different values, and no entry has exactly this name.
    """
    entries = {
        key[len(_PREFIX) :]: str(value)
        for key, value in (conf.getsection("jmsjca") or {}).items()
        if key.startswith(_PREFIX)
    }
    alike = {key: value for key, value in entries.items() if key.lower() == name.lower()}
    if name in alike or not alike:
        return alike.get(name)
    if len(set(alike.values())) > 1:
        raise ConfigurationError(
            f"destination lookup://{name}: [jmsjca] defines {' and '.join(sorted(alike))}, which "
            "differ; keep one of them"
        )
    return next(iter(alike.values()))


def _variable(name: str, value: str) -> AdministeredObject:
    """Return the object in an Airflow variable. Errors never show its value, which may be a secret."""
    try:
        return AdministeredObject.parse(value)
    except ConfigurationError:
        raise ConfigurationError(
            f"destination lookup://{name}: the Airflow variable {name!r} can't be read as a destination. Its "
            "value isn't shown, it may be a secret. Expected queue://orders or topic://prices, or JSON such "
            'as {"type": "queue", "name": "q1234", "options": {"prefetch": "10"}}'
        ) from None
