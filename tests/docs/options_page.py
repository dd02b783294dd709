"""The page of all options, made from the option table."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_jmsjca.core.configuration.explain import default_text
from airflow_provider_jmsjca.core.options import Family, Option, OptionType
from airflow_provider_jmsjca.core.options.inert_rows import INERT
from airflow_provider_jmsjca.core.options.table import GROUPS

_HEAD = """\
# Options

<!-- Made by `python -m tests.docs` from airflow_provider_jmsjca/core/options; change it there. -->

Each option has a name of this package, and the names used by other products. All of them are read, in any
case, and `-` may be written `_`.

**Durations:** `500ms`, `30s`, `5m`, `2h` and `1d` say their unit. A bare number is in seconds under the
name of this package. Under another name it is in the unit behind that name.

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
        option.reason or "; ".join(filter(None, (_form(option), default_text(option)))),
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
