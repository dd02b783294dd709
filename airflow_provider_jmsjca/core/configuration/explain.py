"""Explains the effective configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_jmsjca.core.configuration.precedence import Resolved
from airflow_provider_jmsjca.core.configuration.url import ConnectionUrl
from airflow_provider_jmsjca.core.masking import MASK, masked_text, masked_value
from airflow_provider_jmsjca.core.options import (
    OPTIONS,
    PARAMETER,
    Family,
    Option,
    OptionType,
    OptionValue,
    duration_text,
    masked_options,
)
from airflow_provider_jmsjca.core.options.choices import ConcurrencyMode
from airflow_provider_jmsjca.core.options.inert_rows import INERT
from airflow_provider_jmsjca.core.options.table import GROUPS

_POOL = ("endpoint_pool_max_size", "endpoint_pool_steady_size")
"""Options about the number of threads that handle messages at once."""
_DESTINATIONS = (
    "destination",
    "redelivery_handling",
    "dead_letter_destination",
    "error_destination",
    "archive_destination",
    "unsubscribed_destination",
    "in_progress_destination",
    "reply_to_destination",
    "source_queue",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One row: an option, its effective value (secrets masked), its origin, and its default.

    Attributes:
        status: `acts`; or why it has no effect here or beside the others; `for the broker` for options that
            aren't ours, `for selectors` for their parameters.
    """

    option: str
    value: str
    origin: str
    default: str
    status: str


def explain(resolved: Resolved, *, only_set: bool = False) -> tuple[Explained, ...]:
    """Return a row for each option, each selector parameter, and each option passed to the broker.

    Options without effect have a row only if they are set.

    Args:
        resolved: The result of `resolve`.
        only_set: Leave out options that have their default.

    Source: J31, J113.
    """
    rows = [
        Explained(
            option=option.name,
            value=display(option, found.value),
            origin=str(found.origin),
            default=default_text(option),
            status=_status(option, resolved),
        )
        for option in _shown(OPTIONS)
        if (found := resolved.value(option.name)).origin.level is not None or (option.acts and not only_set)
    ]
    rows += [
        Explained(
            option=f"{PARAMETER}{name}",
            value=masked_value(name, value),
            origin=str(origin),
            default="",
            status="for selectors",
        )
        for name, (value, origin) in resolved.parameters.items()
    ]
    rows += [
        Explained(
            option=key,
            value=masked_value(key, value),
            origin=str(origin),
            default="",
            status="for the broker",
        )
        for key, (value, origin) in resolved.broker_options.items()
    ]
    return tuple(rows)


def _status(option: Option, resolved: Resolved) -> str:
    """Return whether an option takes effect beside the others. Source: J55."""
    if option.name in _DESTINATIONS and _is_refused_over_stomp(resolved, option):
        return "refused: STOMP can't look up names of jndi://"
    if option.name in _POOL and resolved["concurrency_mode"] is ConcurrencyMode.SERIAL:
        return "no effect: concurrency_mode is serial, one by one"
    return option.status


def _is_refused_over_stomp(resolved: Resolved, option: Option) -> bool:
    """Return whether a destination is in the provider's own JNDI, inaccessible to STOMP. Source: J86, J90."""
    value = resolved.value(option.name).value
    names = value if isinstance(value, tuple) else (value,)
    over_stomp = resolved.url is not None and resolved.url.scheme.startswith("stomp")
    return over_stomp and any("jndi://" in str(name).lower() for name in names)


def display(option: Option, value: OptionValue) -> str:
    """Return a value as tables show it; empty where there is none."""
    if value is None:
        return "no limit" if option.unlimited else ""
    if option.secret:
        return MASK
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(masked_text(item) for item in value)
    if option.name == "connection_url":
        return ConnectionUrl.parse(str(value)).masked()
    if option.value_type is OptionType.PROPERTIES:
        return masked_options(str(value))
    return masked_text(str(value)) if isinstance(value, str) else _number(value)


def default_text(option: Option) -> str:
    """Return the default as tables show it."""
    return option.shown_default or display(option, option.default)


def _number(value: OptionValue) -> str:
    return str(value) if isinstance(value, int) else duration_text(value)  # type: ignore[arg-type]  # what remains


def _shown(options: Iterable[Option]) -> Iterable[Option]:
    """Leave out Options texts and their separator, which `resolve` splits into options."""
    return (option for option in options if option.name not in {"options", "separator"})


_HEAD = """\
# Options

<!-- Made by `python -m tests.docs` from airflow_provider_jmsjca/core/options; change it there. -->

Every option has a name of ours and the spellings of the products from which it comes. All of them are read,
in any case, and `-` may be written `_`.

**Durations:** `500ms`, `30s`, `5m`, `2h` and `1d` say their unit. A bare number is in seconds under our own
name. Under another name it is in the unit behind that name.

**Levels:** the letters say where an option may stand.

| letter | level |
|---|---|
| C | connector: section `[jmsjca]` of the Airflow configuration, or a variable such as `JMSJCA_NOXA` |
| F | connection factory: an Airflow connection |
| A | activation: the spec of a listener, a trigger or a task |

A overrides F, and F overrides C. Within a level the query of the URL overrides the Options text, which
overrides a field. Where an option is marked `!`, its `JMSJCA.*` key replaces the field at every level.

**Unknown keys:** a `JMSJCA.*` key that is not on this page is an error. Every other key in a URL or an
Options text goes to the broker untouched. Only `username`, `password` and the names under Transport are read
there without `JMSJCA.`.

[Options without effect](#without-effect) are accepted wherever they are given, with any value. A warning
and `airflow jms explain` then give the reason.
"""


TASKS: Mapping[str, tuple[str, ...]] = {
    "reach a broker": ("connection_url", "username", "password", "client_id", "virtual_host"),
    "use TLS": ("tls", "ca_file", "certificate_file", "key_file", "verify", "server_name"),
    "wait longer or shorter": ("connect_timeout", "reply_timeout", "heart_beat", "polling_interval"),
    "choose messages": ("destination", "message_selector", "subscription_durability", "subscription_name"),
    "try again, and give up": (
        "redelivery_handling",
        "max_attempts",
        "dead_letter_destination",
        "non_retryable",
    ),
    "handle several at once": ("concurrency_mode", "endpoint_pool_max_size", "prefetch"),
    "handle many in one transaction": ("batch_size", "batch_timeout", "batch_idle_timeout"),
    "acknowledge later": ("hold_until_ack", "transaction_timeout"),
    "keep counts and ids over restarts": (
        "use_store",
        "duplicate_event_elimination",
        "in_doubt_events",
        "non_blocking_redelivery",
        "message_id_fallback",
    ),
    "keep or sort out messages": ("archive_destination", "error_destination", "unsubscribed_destination"),
    "share a durable subscription": ("generate_unique_client_id", "durable_subscription_deletion"),
    "bound connections and sessions": ("pool_max_size", "pool_timeout", "idle_timeout"),
}
"""Task of a user -> the options to look at first."""


def render_options_page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD, "\n## By task\n\n| to | set |\n|---|---|\n"]
    parts += [f"| {task} | {', '.join(f'`{name}`' for name in names)} |\n" for task, names in TASKS.items()]
    for title, options in GROUPS.items():
        parts.append(f"\n## {title}\n\n")
        if options is INERT:
            parts.append(
                "| Option | Meaning where it comes from | Why it has no effect | Levels | Also spelled |\n"
            )
        else:
            parts.append("| Option | Meaning | Form; default | Levels | Also spelled |\n")
        parts.append("|---|---|---|---|---|\n")
        parts.extend(_row(option) for option in options)
    return "".join(parts)


def _row(option: Option) -> str:
    spellings = ", ".join(_spelling(option, family, name) for family, name in option.spellings()[1:])
    levels = option.levels + ("!" if option.key_replaces_field else "")
    cells = (
        f"`{option.name}`" + (" (secret)" if option.secret else ""),
        option.meaning,
        option.why or "; ".join(filter(None, (_form(option), default_text(option)))),
        levels,
        spellings,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _spelling(option: Option, family: Family, name: str) -> str:
    unit = f", {option.unit_of(name)}" if option.value_type is OptionType.DURATION else ""
    return f"`{name}` ({family}{unit})"


def _form(option: Option) -> str:
    if option.choices is not None:
        return ", ".join(f"`{member.value}`" for member in option.choices)
    bounds = "" if option.minimum is None else f", {option.minimum} or more"
    return f"{option.value_type}{bounds}"
