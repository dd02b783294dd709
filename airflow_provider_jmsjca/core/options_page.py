"""The reference page of all options, made from the option table."""

from __future__ import annotations

from airflow_provider_jmsjca.core.explain import default_text
from airflow_provider_jmsjca.core.options import Family, Option, OptionType
from airflow_provider_jmsjca.core.options.table import GROUPS

_HEAD = """\
# Options

<!-- Made by `python -m tests.docs` from airflow_provider_jmsjca/core/options; change it there. -->

Every option has a name of ours and the spellings of the products it comes from; all of them are read.
Case doesn't matter, and `-` may be written `_`. A bare number under our own name is in seconds where the
option is a duration; under another name it is in the unit given behind it. `500ms`, `30s`, `5m`, `2h` and
`1d` say the unit themselves.

Levels: C connector (section `[jmsjca]` of the Airflow configuration, or an environment variable such as
`JMSJCA_NOXA`), F connection factory (an Airflow connection), A activation (an activation spec). Higher
levels win: C < F < A; within a level a field < the Options text < the query of the URL. An option marked ! is
one whose `JMSJCA.*` key, at whatever level, replaces the field at every level. A `JMSJCA.*` key that is not
on this page is an error; every other key in a URL or an Options text goes to the broker untouched, except
`username` and `password` in a URL and the names under Transport, which may stand without `JMSJCA.`.

Status: an option acts; or it is accepted and has no meaning here, for the reason given.
"""


def render_options_page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for title, options in GROUPS.items():
        parts.append(f"\n## {title}\n\n")
        parts.append("| Option | Also spelled | Form | Default | Levels | Meaning | Status | Source |\n")
        parts.append("|---|---|---|---|---|---|---|---|\n")
        parts.extend(_row(option) for option in options)
    return "".join(parts)


def _row(option: Option) -> str:
    spellings = ", ".join(_spelling(option, family, name) for family, name in option.spellings()[1:])
    status = f"acts in {option.acts}" if option.acts else option.status
    levels = option.levels + ("!" if option.key_replaces_field else "")
    cells = (
        f"`{option.name}`" + (" (secret)" if option.secret else ""),
        spellings,
        _form(option),
        default_text(option),
        levels,
        option.meaning,
        status,
        option.source,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _spelling(option: Option, family: Family, name: str) -> str:
    unit = f", {option.unit_of(name)}" if option.value_type is OptionType.DURATION else ""
    return f"`{name}` ({family}{unit})"


def _form(option: Option) -> str:
    if option.choices is not None:
        return ", ".join(f"`{member.value}`" for member in option.choices)
    bounds = ""
    if option.minimum is not None:
        bounds = (
            f", {option.minimum} or more"
            if option.maximum is None
            else f", {option.minimum} to {option.maximum}"
        )
    return f"{option.value_type}{bounds}"
