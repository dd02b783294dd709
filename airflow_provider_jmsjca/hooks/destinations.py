"""Destinations as Airflow's side knows them: also those that have to be looked up."""

from __future__ import annotations

from airflow.sdk import Variable
from airflow.sdk.configuration import conf

from airflow_provider_jmsjca.core.administered import AdministeredObject, DestinationReference
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind

_PREFIX = "destination."


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
    if not text.strip().lower().startswith(("lookup://", "jmsjca://")):
        return Destination.parse(text)
    reference = DestinationReference.parse(text, default=DestinationKind.QUEUE)
    if not reference.lookup:
        return reference.resolve({})
    given = (conf.getsection("jmsjca") or {}).get(_PREFIX + reference.name.lower())
    if given is None and variables:
        given = Variable.get(reference.name, default=None)
    objects = {} if given is None else {reference.name: AdministeredObject.parse(str(given))}
    return reference.resolve(objects)
