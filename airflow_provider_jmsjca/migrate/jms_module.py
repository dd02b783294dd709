"""Reads WebLogic JMS modules: destination names and the rules for failed messages.

A module is a file `*-jms.xml`, in `config/jms` of a domain or in an application. A foreign server in a module
gives local names to destinations of another server.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from airflow_provider_jmsjca.migrate.elements import Element

_KINDS = {
    "queue": "queue",
    "distributed-queue": "queue",
    "uniform-distributed-queue": "queue",
    "topic": "topic",
    "distributed-topic": "topic",
    "uniform-distributed-topic": "topic",
}
_MEMBERS = ("distributed-queue-member", "distributed-topic-member")
_JNDI_NAMES = ("jndi-name", "local-jndi-name")
_RESOURCE = "#"
"""Separates module and name in a `destination-resource-link` or `connection-factory-resource-link`."""
_WITHOUT_DELAY = ("weblogic.jms.", "javax.jms.")
"""Prefixes of the JNDI names of WebLogic's default connection factories."""
_BY_NAME = {"dynamicQueues/": "queue", "dynamicTopics/": "topic"}
"""Prefixes of ActiveMQ's own JNDI names; the rest is the destination's name."""
_LONGEST = 19
"""Number of digits of the largest Java `long`."""
_UNFIT = ("://", *";,()$")
"""Strings that the name of a move target can't contain unescaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRules:
    """Rules for failed messages. `None` in a field: not set, so the template's rule applies.

    Attributes:
        limit: Number of redeliveries after which WebLogic removes the message; negative: no limit.
        delay: Milliseconds before each redelivery; negative: the connection factory's delay.
        error_destination: Name, in the module, of the destination for removed messages.
    """

    limit: int | None
    delay: int | None
    error_destination: str | None

    def over(self, base: FailureRules) -> FailureRules:
        """Return these rules; a rule that is not set is taken from `base`, the rules of the template."""
        return FailureRules(
            limit=base.limit if self.limit is None else self.limit,
            delay=base.delay if self.delay is None else self.delay,
            error_destination=self.error_destination or base.error_destination,
        )


@dataclass(frozen=True, slots=True)
class _Said:
    """Notes about rules, and whether every possible source of rules was read."""

    notes: tuple[str, ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDestination:
    """A destination of a module.

    Attributes:
        kind: `queue` or `topic`.
        name: The destination's name in the module.
        jndi_names: JNDI names under which beans look it up.
        own: Rules set on the destination itself.
        template: Name of its template; empty if it has no template.
        sub_deployment: Name of the subdeployment, for which the template may have an error destination.
        members: Names of the members of a weighted distributed destination.
    """

    kind: str
    name: str
    jndi_names: tuple[str, ...]
    own: FailureRules
    template: str
    sub_deployment: str
    members: tuple[str, ...]

    @property
    def address(self) -> str:
        """The destination in this package's notation, as `queue://name`."""
        return f"{self.kind}://{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignDestination:
    """A local JNDI name for a destination of another server.

    Attributes:
        server: Name of the foreign server.
        remote: JNDI name of the destination at the other server.
        address: The destination, as `queue://orders`, if the JNDI settings of ActiveMQ or Artemis contain it.
    """

    server: str
    remote: str
    address: str


@dataclass(frozen=True, slots=True)
class Template:
    """A template: defaults for the destinations that refer to it."""

    rules: FailureRules
    groups: dict[str, str]


@dataclass(slots=True)
class Module:
    """One module; names are unique within it."""

    destinations: dict[str, ModuleDestination] = field(default_factory=dict)
    templates: dict[str, Template] = field(default_factory=dict)


@dataclass(slots=True)
class JmsModules:
    """Merged contents of JMS modules.

    Attributes:
        modules: The modules, in the order of reading.
        foreign: Foreign destinations, by their local JNDI names.
        foreign_factories: Remote JNDI names of foreign connection factories, by their local JNDI names.
        delays: Redelivery delays of connection factories in milliseconds, by JNDI name and name; `None`: not
            set.
        client_ids: Client ids of connection factories, by JNDI name.
    """

    modules: list[Module] = field(default_factory=list)
    foreign: dict[str, ForeignDestination] = field(default_factory=dict)
    foreign_factories: dict[str, str] = field(default_factory=dict)
    delays: dict[str, int | None] = field(default_factory=dict)
    client_ids: dict[str, str] = field(default_factory=dict)

    def read(self, root: Element) -> None:
        """Read a text, if it is a module."""
        if root.tag != "weblogic-jms":
            return
        module = Module()
        self.modules.append(module)
        for child in root.children:
            names = tuple(leaf.taken() for leaf in child.children if leaf.tag in _JNDI_NAMES)
            name = child.attributes.get("name") or next(iter(names), "")
            if child.tag in _KINDS:
                module.destinations[name] = _destination(child, name, names or (name,))
            elif child.tag == "template":
                module.templates[name] = _template(child)
            elif child.tag == "connection-factory":
                delay, client_id = _number(child, "default-redelivery-delay"), child.value("client-id")
                self.delays.update(dict.fromkeys((*names, name), delay))
                self.client_ids.update(dict.fromkeys(names, client_id) if client_id else {})
            elif child.tag == "foreign-server":
                self._read_foreign(child, name)

    @property
    def entries(self) -> dict[str, str]:
        """The destinations, as `queue://OrderQueue`, by JNDI name."""
        local = {
            name: each.address
            for module in reversed(self.modules)
            for each in reversed(module.destinations.values())
            for name in each.jndi_names
        }
        foreign = {name: self.address(name) for name in self.foreign if name not in local}
        return {
            **dict(reversed(local.items())),
            **{name: address for name, address in foreign.items() if address},
        }

    def address(self, jndi_name: str) -> str:
        """Return the destination of a JNDI name, as `queue://OrderQueue`; empty if unknown."""
        leads = self.foreign.get(jndi_name)
        found = self._find(jndi_name) or (leads and self._find(leads.remote))
        return found[1].address if found else leads.address if leads else ""

    def know(self, jndi_name: str) -> bool:
        """Return whether a module has a destination of this name, its own or a foreign one."""
        return jndi_name in self.foreign or self._find(jndi_name) is not None

    def handling(self, jndi_name: str, factory: str) -> tuple[str, tuple[str, ...]] | None:
        """Return the redelivery handling of a destination, and notes; `None` for an unknown destination.

        WebLogic's limit counts redeliveries: with a limit of five, a message is redelivered five times and
        then removed, so five becomes `6:move(...)`. A local name of a foreign server's destination stands for
        that destination, if the module with that destination was read.

        Args:
            jndi_name: JNDI name of the destination.
            factory: JNDI name of the connection factory; its delay applies if the destination has none.
        """
        found = self._find(jndi_name)
        if found is None and (leads := self.foreign.get(jndi_name)) is not None:
            found = self._find(leads.remote)
            if found is None:
                note = (
                    f"{jndi_name} is {leads.remote} of the foreign server {leads.server!r}, which isn't in "
                    "these files. Limit, delay and error destination are kept there; if that is WebLogic, "
                    "import its *-jms.xml too"
                )
                return "", (note,)
        if found is None:
            return None
        module, destination = found
        rules, said = _rules(module, destination)
        waits, notes = self._delay(rules, factory, complete=said.complete)
        text, more = self._end(module, destination, rules, complete=said.complete)
        return "; ".join(filter(None, (waits, text))), (*said.notes, *notes, *more)

    def _delay(self, rules: FailureRules, factory: str, *, complete: bool) -> tuple[str, list[str]]:
        delay, notes = rules.delay, []
        if delay is None or delay < 0:
            name = self.foreign_factories.get(factory, factory).rpartition(_RESOURCE)[2]
            delay = self.delays.get(name)
            if name and name not in self.delays and not name.startswith(_WITHOUT_DELAY) and complete:
                notes.append(
                    f"the connection factory {name} isn't in these files; if it has a "
                    "default-redelivery-delay, begin redelivery_handling with 1:MILLISECONDS"
                )
        return f"1:{delay}" if delay and delay > 0 and rules.limit != 0 else "", notes

    def _end(
        self, module: Module, destination: ModuleDestination, rules: FailureRules, *, complete: bool
    ) -> tuple[str, tuple[str, ...]]:
        """Return the final action after the redeliveries, and notes about it.

        Args:
            module: Module of the destination.
            destination: The destination.
            rules: The rules in force.
            complete: Whether every possible source of rules was read; if not, no note reports missing rules.
        """
        where = destination.address
        # Not $.dlq: the destination is looked up, and `$` would produce the name of another object.
        unfit = any(part in destination.name for part in _UNFIT)
        dead = "lookup://NAME" if unfit else f"{destination.name}.dlq"
        if rules.limit is None or rules.limit < 0:
            note = (
                f"these files give {where} no redelivery limit. Unless its producers set one, a message that "
                "always fails is redelivered for ever; end redelivery_handling with "
                f"{_after('6', 'queue', dead)}"
            )
            return "", (note,) if complete else ()
        at = str(rules.limit + 1)
        if not rules.error_destination:
            known = f"WebLogic drops a message of {where} after {rules.limit} redeliveries, here it stays"
            note = known if complete else f"the limit of {where} is {rules.limit}"
            return "", (f"{note}; end it with {at}:delete, or {_after(at, 'queue', dead)}",)
        target = self._named(module, rules.error_destination)
        kind, name = ("queue", rules.error_destination) if target is None else (target.kind, target.name)
        if any(part in name for part in _UNFIT):
            note = f"the error destination {name!r} can't be written there; define an object for it"
            return "", (f"{note} and end it with {_after(at, kind, 'lookup://NAME')}",)
        said = (
            () if target else (f"the error destination {name!r} isn't in these files; assumed to be a queue",)
        )
        return _after(at, kind, name), said

    def _read_foreign(self, server: Element, name: str) -> None:
        settings = {
            found.value("key"): found.value("value")
            for found in server.find("jndi-property")
            if found.glimpse("key").startswith(tuple(f"{kind}." for kind in set(_KINDS.values())))
        }
        for child in server.children:
            local, remote = child.glimpse("local-jndi-name"), child.glimpse("remote-jndi-name")
            if not (local and remote):
                continue
            if child.tag == "foreign-destination":
                address = _activemq(remote, settings)
                self.foreign[local] = ForeignDestination(server=name, remote=remote, address=address)
            elif child.tag == "foreign-connection-factory":
                self.foreign_factories[local] = remote
            else:
                continue
            for tag in ("local-jndi-name", "remote-jndi-name"):
                child.value(tag)

    def _find(self, jndi_name: str) -> tuple[Module, ModuleDestination] | None:
        """Return the destination of a JNDI name or resource link, with its module."""
        _, link, name = jndi_name.rpartition(_RESOURCE)
        return next(
            (
                (module, each)
                for module in self.modules
                for each in module.destinations.values()
                if jndi_name in each.jndi_names or (link and name == each.name)
            ),
            None,
        )

    def _named(self, module: Module, name: str) -> ModuleDestination | None:
        """Return the destination of this name, from this module if possible, else from another."""
        modules = [module, *(each for each in self.modules if each is not module)]
        return next((each.destinations[name] for each in modules if name in each.destinations), None)


def _destination(element: Element, name: str, jndi_names: tuple[str, ...]) -> ModuleDestination:
    return ModuleDestination(
        kind=_KINDS[element.tag],
        name=name,
        jndi_names=jndi_names,
        own=_own_rules(element),
        template=next((child.taken() for child in element.children if child.tag == "template"), ""),
        sub_deployment=element.glimpse("sub-deployment-name"),
        members=tuple(
            member.value("physical-destination-name") or member.attributes.get("name", "")
            for tag in _MEMBERS
            for member in element.find(tag)
        ),
    )


def _template(element: Element) -> Template:
    groups = {
        found.attributes.get("sub-deployment-name", ""): found.value("error-destination")
        for found in element.find("group-params")
    }
    return Template(_own_rules(element), groups)


def _own_rules(element: Element) -> FailureRules:
    failure = next(element.find("delivery-failure-params"), None)
    return FailureRules(
        limit=None if failure is None else _number(failure, "redelivery-limit"),
        delay=_number(element, "redelivery-delay"),
        error_destination=None if failure is None else failure.value("error-destination") or None,
    )


def _rules(module: Module, destination: ModuleDestination) -> tuple[FailureRules, _Said]:
    """Return the effective rules, with notes about their origin."""
    if destination.members:
        return _rules_of_members(module, destination)
    if not destination.template:
        return destination.own, _Said()
    template = module.templates.get(destination.template)
    if template is None:
        note = (
            f"the template {destination.template!r} of {destination.address} isn't in these files; it may "
            "give limit, delay and error destination"
        )
        return destination.own, _Said((note,), complete=False)
    base, group = template.rules, template.groups.get(destination.sub_deployment)
    return destination.own.over(replace(base, error_destination=group) if group else base), _Said()


def _rules_of_members(module: Module, distributed: ModuleDestination) -> tuple[FailureRules, _Said]:
    """Return the rules of the first member: a weighted distributed destination has no rules of its own."""
    named = {name: module.destinations.get(name) for name in distributed.members}
    found = [member for member in named.values() if member is not None and not member.members]
    each = [_rules(module, member) for member in found]
    notes = [
        f"the member {name!r} of {distributed.address} isn't in these files; it may give limit, delay and "
        "error destination"
        for name, member in named.items()
        if member is None
    ]
    notes.extend(note for _, said in each for note in said.notes)
    if len({rules for rules, _ in each}) > 1:
        notes.append(
            f"the members of {distributed.address} differ in limit, delay or error destination; those of "
            f"{found[0].name!r} are used"
        )
    complete = None not in named.values() and all(said.complete for _, said in each)
    return each[0][0] if each else distributed.own, _Said(tuple(notes), complete=complete)


def _activemq(remote: str, settings: dict[str, str]) -> str:
    """Return the destination that a name has in the JNDI of ActiveMQ or Artemis; empty for other names."""
    for kind in ("queue", "topic"):
        if name := settings.get(f"{kind}.{remote}"):
            return f"{kind}://{name}"
    for prefix, kind in _BY_NAME.items():
        if remote.startswith(prefix):
            return f"{kind}://{remote.removeprefix(prefix)}"
    return ""


def _after(count: str, kind: str, name: str) -> str:
    return f"{count}:move({kind}:{name})"


def _number(element: Element, tag: str) -> int | None:
    """Return the number in the first element with the tag; `None` if that is no number or doesn't exist."""
    given = element.value(tag)
    digits = given.removeprefix("-")
    return int(given) if digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST else None
