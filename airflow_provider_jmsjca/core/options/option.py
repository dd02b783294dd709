"""The row of the option table that describes one option."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass, field
from datetime import timedelta

from airflow_provider_jmsjca.core.masking import is_secret

OptionValue = str | int | bool | timedelta | tuple[str, ...] | None


class Level(enum.IntEnum):
    """The levels of configuration; the value of a higher level wins.

    `CONNECTOR` is the whole installation, `CONNECTION_FACTORY` an Airflow connection.

    Source: J31, J76.
    """

    CONNECTOR = 0
    CONNECTION_FACTORY = 1
    ACTIVATION = 2
    CALL = 3

    @functools.cached_property
    def label(self) -> str:
        """Name of the level in texts."""
        return self.name.lower().replace("_", " ")


class OptionType(enum.StrEnum):
    """The form in which an option's value is given."""

    TEXT = "text"
    INTEGER = "whole number"
    BOOLEAN = "true or false"
    CHOICE = "choice"
    DURATION = "duration"
    LIST = "list"
    PROPERTIES = "properties"
    ANY = "any"


class Measure(enum.StrEnum):
    """Unit of a number that is given without a unit."""

    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"


class Family(enum.StrEnum):
    """The product, and for some the kind of name, from which a spelling of an option comes."""

    OURS = "ours"
    JMSJCA = "JMSJCA"
    JMSJCA_KEY = "JMSJCA option"
    EJB = "ejb-jar"
    WEBLOGIC = "WebLogic"
    GLASSFISH = "GlassFish"
    JAVA_CAPS = "Java CAPS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of the product, under all its names.

    Attributes:
        name: Name in this package, in snake_case. Under this name, a duration without a unit is in seconds.
        value_type: The form of the option's value.
        default: Value if the option is not set; `None` without a default.
        levels: Levels that may set the option: `C` connector (the installation), `F` connection factory, `A`
            activation.
        jmsjca: Names of JMSJCA fields.
        key: Names inside an Options text or a URL query, for example `JMSJCA.NoXA`.
        ejb: Elements of `ejb-jar.xml`.
        weblogic: Elements of `weblogic-ejb-jar.xml`.
        glassfish: Elements of `sun-ejb-jar.xml` and `glassfish-ejb-jar.xml`.
        java_caps: Properties of a Java CAPS JMS client.
        alias_unit: Unit of a duration that is given as a bare number, under any name except `name`. Names
            that end in `-seconds` always count seconds.
        choices: The values allowed, for a choice.
        minimum: Lowest number allowed (seconds for a duration).
        unlimited: Whether -1 means "no limit" (the value is then `None`).
        meaning: One line for the reference page and the connection form.
        source: Catalogue numbers.
        acts: Modules in which the option takes effect; empty if it is accepted without effect.
        reason: Reason why the option has no effect.
        unprefixed: Whether a URL query or Options text may also set the option without the prefix `JMSJCA.`.
        key_replaces_field: Whether the key, set at any level, overrides the field at every level.
        blank_counts: Whether an empty text is a value of its own.
        lookup_names: Names under which a value without a scheme is a name to look up, as with `lookup://`.
        separators: Characters that separate the items of a list in text.
        label: Label in the connection form; empty if the option isn't on the form.
        shown_default: The default in words, if the value alone is unclear.

    Source: J143, W44.
    """

    name: str
    value_type: OptionType
    levels: str
    meaning: str
    source: str
    default: OptionValue = None
    jmsjca: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    ejb: tuple[str, ...] = ()
    weblogic: tuple[str, ...] = ()
    glassfish: tuple[str, ...] = ()
    java_caps: tuple[str, ...] = ()
    alias_unit: Measure = Measure.SECONDS
    choices: type[enum.StrEnum] | None = None
    minimum: int | None = None
    unlimited: bool = False
    acts: str = ""
    reason: str = ""
    unprefixed: bool = False
    key_replaces_field: bool = False
    blank_counts: bool = False
    lookup_names: tuple[str, ...] = ()
    separators: str = ",;"
    label: str = ""
    shown_default: str = ""
    secret: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "secret", is_secret(self.name))

    @property
    def status(self) -> str:
        """`acts`, or `accepted, no effect: ` and the reason."""
        if self.acts:
            return "acts"
        return f"accepted, no effect: {self.reason}"

    def allowed_at(self, level: Level) -> bool:
        """Return whether a level may set the option; for a call, whether a connection factory may set it."""
        letter = "CFAF"[level]
        return letter in self.levels

    def spellings(self) -> tuple[tuple[Family, str], ...]:
        """Return every name of the option with its family, the name in this package first."""
        rows: list[tuple[Family, str]] = [(Family.OURS, self.name)]
        for family, names in (
            (Family.JMSJCA, self.jmsjca),
            (Family.JMSJCA_KEY, self.key),
            (Family.EJB, self.ejb),
            (Family.WEBLOGIC, self.weblogic),
            (Family.GLASSFISH, self.glassfish),
            (Family.JAVA_CAPS, self.java_caps),
        ):
            rows.extend((family, name) for name in names)
        return tuple(rows)

    def unit_of(self, spelling: str) -> Measure:
        """Return the unit that this spelling implies for a bare number."""
        if spelling == self.name or spelling.endswith(("-seconds", "_seconds")):
            return Measure.SECONDS
        return self.alias_unit
