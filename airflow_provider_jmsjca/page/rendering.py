"""HTML of the page. Text of producers, brokers and users is always escaped, control characters included."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from airflow_provider_jmsjca.escaping import escaped, escaped_lines

FOLDER: Final = Path(__file__).parent


def rendered(template: str, **values: object) -> str:
    """Return a template of the folder `templates` as HTML.

    Args:
        template: Name of the file.
        values: Variables of the template. Times must be in UTC and are shown to the second; `None` is shown
            as an empty text. In every other value control characters are escaped and HTML is quoted.
    """
    return _environment.get_template(template).render(values)


def _shown(value: object) -> object:
    """Return the text of an expression, before Jinja quotes its HTML."""
    match value:
        case Markup():
            return value
        case None:
            return ""
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case _:
            return escaped(value)


def _lines(text: str) -> Markup:
    """Return a text of several lines with each line escaped, for `<pre>`."""
    return Markup("{}").format(escaped_lines(text))


def _value(text: str) -> Markup:
    """Return the value of a form's field, with unprintable characters as character references of HTML.

    So the browser sends back the original text. With other escapes, the form would name another queue than
    the user did.
    """
    return Markup("").join(each if each.isprintable() else Markup("&#{};").format(ord(each)) for each in text)


_environment: Final = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    finalize=_shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {"lines": _lines, "value": _value}
