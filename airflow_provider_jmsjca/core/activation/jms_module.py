"""Reads JMS modules of WebLogic: they hold the names of destinations, and what becomes of failed messages.

A module is a file `*-jms.xml`, in `config/jms` of a domain or in an application.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_jmsjca.core.activation.elements import Element

_KINDS = {
    "queue": "queue",
    "distributed-queue": "queue",
    "uniform-distributed-queue": "queue",
    "topic": "topic",
    "distributed-topic": "topic",
    "uniform-distributed-topic": "topic",
}
_JNDI_NAMES = ("jndi-name", "local-jndi-name")
_UNFIT = ("://", *";,()$")
"""What the name of a move's target can't hold as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDestination:
    """A destination of a module.

    Attributes:
        kind: `queue` or `topic`.
        name: The destination's name in the module.
        jndi_names: The names that beans look it up by.
        limit: Redeliveries before WebLogic takes the message away; `None`: it never does.
        delay: Milliseconds before each; `None`: what the connection factory says.
        error_destination: Name in the module of where the message goes then; empty: WebLogic drops it.
    """

    kind: str
    name: str
    jndi_names: tuple[str, ...]
    limit: int | None
    delay: int | None
    error_destination: str


@dataclass(slots=True)
class JmsModules:
    """What the modules say together.

    Attributes:
        destinations: By their names in the modules.
        delays: Milliseconds before each redelivery, by the JNDI name of the connection factory.
        client_ids: By the JNDI name of the connection factory.
    """

    destinations: dict[str, ModuleDestination] = field(default_factory=dict)
    delays: dict[str, int] = field(default_factory=dict)
    client_ids: dict[str, str] = field(default_factory=dict)

    def read(self, root: Element) -> None:
        """Take what a text says, if it is a module."""
        for child in root.children if root.tag == "weblogic-jms" else ():
            names = tuple(leaf.taken() for leaf in child.children if leaf.tag in _JNDI_NAMES)
            name = child.attributes.get("name") or next(iter(names), "")
            if child.tag in _KINDS:
                self.destinations[name] = ModuleDestination(
                    kind=_KINDS[child.tag],
                    name=name,
                    jndi_names=names or (name,),
                    limit=_number(child, "redelivery-limit"),
                    delay=_number(child, "redelivery-delay"),
                    error_destination=child.value("error-destination"),
                )
            elif child.tag == "connection-factory":
                delay, client_id = _number(child, "default-redelivery-delay"), child.value("client-id")
                self.delays.update(dict.fromkeys(names, delay) if delay else {})
                self.client_ids.update(dict.fromkeys(names, client_id) if client_id else {})

    @property
    def entries(self) -> dict[str, str]:
        """The destinations, as `queue://OrderQueue`, by the JNDI names."""
        return {
            name: f"{each.kind}://{each.name}"
            for each in self.destinations.values()
            for name in each.jndi_names
        }

    def handling(self, jndi_name: str, factory: str) -> tuple[str, str] | None:
        """Return the redelivery handling of a destination and a note, either may be empty; `None`: not known.

        WebLogic's limit counts redeliveries: of five a message comes back five times and then goes away, so
        five become `6:move(...)`.

        Args:
            jndi_name: Name of the destination.
            factory: JNDI name of the connection factory, whose delay holds where the destination has none.
        """
        found = next((each for each in self.destinations.values() if jndi_name in each.jndi_names), None)
        if found is None:
            return None
        delay = self.delays.get(factory, 0) if found.delay is None else found.delay
        waits = [f"1:{delay}"] if delay and found.limit != 0 else []
        where = f"{found.kind}://{found.name}"
        # Not $.dlq: the destination is looked up, and `$` would make the name of another object.
        dead = "lookup://NAME" if any(part in found.name for part in _UNFIT) else f"{found.name}.dlq"
        if found.limit is None:
            note = f"{where} has no redelivery limit: a message that always fails comes again for ever"
            return "; ".join(waits), f"{note}; end it with {_after('6', 'queue', dead)}"
        at = str(found.limit + 1)
        if not found.error_destination:
            note = f"WebLogic drops a message of {where} after {found.limit} redeliveries, here it stays"
            return "; ".join(waits), f"{note}; end it with {at}:delete, or {_after(at, 'queue', dead)}"
        target = self.destinations.get(found.error_destination)
        kind, name = ("queue", found.error_destination) if target is None else (target.kind, target.name)
        if any(part in name for part in _UNFIT):
            note = f"the error destination {name!r} can't stand in it; define an object for it"
            return "; ".join(waits), f"{note} and end it with {_after(at, kind, 'lookup://NAME')}"
        said = "" if target else f"the error destination {name!r} isn't in these files, taken for a queue"
        return "; ".join([*waits, _after(at, kind, name)]), said


def _after(count: str, kind: str, name: str) -> str:
    return f"{count}:move({kind}:{name})"


def _number(element: Element, tag: str) -> int | None:
    """Return a number said in it; `None` where it isn't, or is -1: the server's default."""
    given = element.value(tag)
    return int(given) if given.isascii() and given.isdigit() else None
