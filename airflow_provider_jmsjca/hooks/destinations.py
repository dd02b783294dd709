"""Destinations as Airflow's side knows them: also those that have to be looked up."""

from __future__ import annotations

from dataclasses import replace

from airflow.sdk import Variable
from airflow.sdk.configuration import conf

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.administered import AdministeredObject, DestinationReference
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.destination_options import reference_text
from airflow_provider_jmsjca.core.redelivery import Move, MoveKind, MoveTarget, RedeliveryHandling
from airflow_provider_jmsjca.errors import ConfigurationError

_PREFIX = "destination."
_LOOKUP = "lookup://"


def find_destination(text: str, *, variables: bool = True) -> Destination:
    """Return the destination that a text names; a bare name is that of a queue.

    `lookup://orders` names an administered object: the entry `destination.orders` of `[jmsjca]`, else the
    Airflow variable `orders`. Either holds `queue://name`, `topic://name`, or JSON such as `{"type": "queue",
    "name": "q1234"}`.

    Args:
        text: The destination.
        variables: Whether to ask for Airflow variables too: not in the triggerer's event loop, which that
            would block.

    Raises:
        ConfigurationError: The text names no destination, or the object isn't there or can't be read.

    Source: J20, J85, J87, J88, J90, J91.
    """
    if not text.strip().lower().startswith((_LOOKUP, "jmsjca://")):
        return Destination.parse(text)
    return _resolve(DestinationReference.parse(text, default=DestinationKind.QUEUE), variables=variables)


def looked_up(spec: ActivationSpec) -> ActivationSpec:
    """Return the spec with every administered object it names in its place.

    That is: its destinations, and the targets of the move in its redelivery handling. `$` in such a target
    stands for the destination as the spec says it, so that `dlq_$` stays in the folder of `lookup://a/b/in`.

    Raises:
        ConfigurationError: An object isn't there or can't be read; or one move would need a different object
            for each of several destinations.

    Source: J50, J87, J140.
    """
    references = spec.destination_references
    if any(reference.lookup for reference in references):
        found = [_resolve(reference) for reference in references]
        title = spec.name or spec.ejb_name or ", ".join(map(str, found))
        handling = _looked_up_moves(spec, references)
        return spec.replace(
            destination=[reference_text(each) for each in found],
            destination_type=None,
            name=title,
            **({} if handling is None else {"redelivery_handling": handling}),
        )
    handling = _looked_up_moves(spec, references)
    return spec if handling is None else spec.replace(redelivery_handling=handling)


def _looked_up_moves(spec: ActivationSpec, references: tuple[DestinationReference, ...]) -> str | None:
    """Return the redelivery handling with its targets looked up; `None` if there is nothing to look up."""
    actions = spec.redelivery.actions
    if not actions or not isinstance(move := actions[-1], Move):
        return None
    targets = (MoveTarget(move.kind, move.name), *move.further)
    for_each = {tuple(_target(target, reference) for target in targets) for reference in references}
    if not any(name.startswith(_LOOKUP) for names in for_each for _, name in names):
        return None
    if len(for_each) > 1:
        raise ConfigurationError(
            f"redelivery_handling: {move} names an object to look up for each of {len(references)} "
            "destinations, expected a target without $, or an activation for each"
        )
    (names,) = for_each
    first, *further = [_move_target(kind, name) for kind, name in names]
    changed = replace(move, kind=first.kind, name=first.name, further=tuple(further))
    return str(RedeliveryHandling((*actions[:-1], changed)))


def _target(target: MoveTarget, reference: DestinationReference) -> tuple[DestinationKind | None, str]:
    kind = reference.kind or DestinationKind.QUEUE
    original = Destination(kind, f"{_LOOKUP}{reference.name}" if reference.lookup else reference.name)
    found = target.destination(original)
    same = target.kind is MoveKind.SAME and reference.kind is None
    return None if same else found.kind, found.name


def _move_target(kind: DestinationKind | None, name: str) -> MoveTarget:
    if name.startswith(_LOOKUP):
        found = _resolve(DestinationReference.parse(name, kind))
        return MoveTarget(MoveKind(found.kind.value), found.name)
    return MoveTarget(MoveKind.SAME if kind is None else MoveKind(kind.value), name)


def _resolve(reference: DestinationReference, *, variables: bool = True) -> Destination:
    if not reference.lookup:
        return reference.resolve({})
    given = (conf.getsection("jmsjca") or {}).get(_PREFIX + reference.name.lower())
    if given is None and variables:
        given = Variable.get(reference.name, default=None)
    objects = {} if given is None else {reference.name: AdministeredObject.parse(str(given))}
    return reference.resolve(objects)
