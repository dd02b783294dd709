"""Output and errors of all commands.

Imports no module about brokers or activations, because commands that only read the store don't need them.
"""

from __future__ import annotations

import argparse
import functools
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence

from airflow.cli.simple_table import AirflowConsole, SimpleTable
from airflow.utils.platform import is_tty
from rich.cells import cell_len
from rich.markup import escape

from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.stored_connections import undefined_text, use_stored_connections

_BETWEEN = 3
"""Width of the space between two columns, in characters."""
_NAMES = ("name", "property")
"""Titles of the first column of tables whose rows are pairs of a name and a value."""
_INDENT = 4
_LEAST_TEXT = 20
_LONGEST_CELL = 2_000
"""Maximum length of a text in a cell of a table, in characters."""
_LONGEST_SHOWN = 100
_BYTES = frozenset({"application", "body", "file", "files", "spec", "spool_path"})
"""Arguments that may have any bytes: names of files, and the body of a bytes message."""

CommandFunction = Callable[[argparse.Namespace], None]


def cells(row: Mapping[str, str], output: str) -> dict[str, str]:
    """Return a row in the form in which it is printed.

    For `table` and `plain`, control characters are escaped. For `table`, long cells are cut, because the time
    that rich needs grows with the square of their length.

    Args:
        row: Texts by column name. They may be text of producers and brokers.
        output: The format: `table`, `plain`, `json` or `yaml`.
    """
    if output == "yaml":  # which has no form for lone surrogates
        return {name: text.encode("utf-8", "backslashreplace").decode("utf-8") for name, text in row.items()}
    if output not in {"table", "plain"}:
        return dict(row)
    shown = {name: escaped(text) for name, text in row.items()}
    if output == "plain":
        return shown
    # Tables are printed as rich's markup, in which [jmsjca] would be a style and vanish.
    return {name: escape(shortened(text)) for name, text in shown.items()}


def shortened(text: str) -> str:
    """Return a text as shown in a cell of a table: at most its first 2,000 characters."""
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


def echo(text: str) -> None:
    """Print a line on standard error, with control characters escaped."""
    sys.stderr.write(f"{escaped(text)}\n")


def print_rows(rows: Sequence[Mapping[str, str]], output: str, *, optional: Sequence[str] = ()) -> None:
    """Print rows; on a terminal too narrow for a table, print each row as lines.

    In a table that is too wide, ids and times would be broken over lines, and users couldn't copy them.

    Args:
        rows: Texts by column name; all rows have the same columns.
        output: The format: `table`, `plain`, `json` or `yaml`.
        optional: Columns that may be left out of a table. They are removed in this order until the table
            fits.
    """
    console = AirflowConsole()
    if output == "plain" and rows:
        _print_plain([cells(row, output) for row in rows])
        return
    if output != "table" or not rows or not is_tty():
        console.print_as(data=rows, output=output, mapper=lambda row: cells(row, output))
        return
    shown = [{name: escaped(shortened(text)) for name, text in row.items()} for row in rows]
    columns, left_out = list(rows[0]), list[str]()
    for name in ("", *optional):
        if name in columns:
            columns.remove(name)
            left_out.append(name)
        if (widths := _widths(columns, shown, console.width)) is not None:
            table = SimpleTable(show_header=True)
            for each, width in zip(columns, widths, strict=True):
                table.add_column(each, width=width)
            for row in shown:
                table.add_row(*(escape(row[each]) for each in columns))
            console.print(table)
            if left_out:
                echo(f"note: the terminal is too narrow for {', '.join(left_out)}; --output json has all")
            return
    sys.stdout.write("\n".join(_lines(row, console.width) for row in shown))


def _print_plain(rows: Sequence[Mapping[str, str]]) -> None:
    """Print rows in columns; Airflow would print a text such as `007` or `1e5` as another number."""
    table = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    for line in table:
        padded = (text + " " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(padded).rstrip() + "\n")


def _widths(columns: Sequence[str], rows: Sequence[Mapping[str, str]], width: int) -> list[int] | None:
    """Return the widths of columns in which no word is broken; `None` if the terminal is too narrow."""
    texts = [[column, *(row[column] for row in rows)] for column in columns]
    least = [max(cell_len(word) for text in cells for word in text.split() or [""]) for cells in texts]
    wanted = [max(map(cell_len, cells)) - most for cells, most in zip(texts, least, strict=True)]
    spare = width - sum(least) - _BETWEEN * (len(columns) - 1) - 1
    if spare < 0:
        return None
    share = min(1.0, spare / max(1, sum(wanted)))
    return [most + int(share * more) for most, more in zip(least, wanted, strict=True)]


def _lines(row: Mapping[str, str], width: int) -> str:
    """Return a row as lines of the form `column text`, wrapped to the width.

    A row whose first column has a title in `_NAMES` is a name, a value and further texts. It becomes one line
    `name (further texts) value`, for example `property retries (int) 3`.
    """
    pairs = list(row.items())
    if pairs[0][0] in _NAMES:
        (_, name), (_, value), *others = pairs
        kinds = " ".join(filter(None, (text for _, text in others)))
        pairs = [(f"{name} ({kinds})" if kinds else name, value)]
    longest = max(len(name) for name, _ in pairs) + 2
    indent = " " * (longest if longest <= width // 2 else _INDENT)
    filled = textwrap.TextWrapper(
        max(width, len(indent) + _LEAST_TEXT),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = []
    for name, text in pairs:
        block = filled.fill(text) if text else ""
        fits = len(name) < len(indent)
        lines.append(name + block[len(name) :] if fits else f"{name}\n{block}".rstrip("\n"))
    return "\n".join(lines) + "\n"


def print_page(
    args: argparse.Namespace,
    rows: Sequence[Mapping[str, str]],
    *,
    number: str = "",
    more: bool = False,
    optional: Sequence[str] = (),
) -> None:
    """Print a page of a list; if there are more rows, print on standard error how to list them.

    Args:
        args: Arguments of the command: `limit` is the number of rows of a page, `after` the start of the page
            to print.
        rows: The rows of the page. A further row shows that there is a next page.
        number: The column whose value `--after` takes; empty if `--after` takes the number of rows to skip.
        more: Whether there is a next page, even if `rows` has no further row.
        optional: Columns that may be left out of a table. They are removed in this order until the table
            fits.
    """
    page = rows[: args.limit]
    print_rows(page, args.output, optional=optional)
    if more or len(rows) > args.limit:
        after = page[-1][number] if number else args.after + args.limit
        echo(
            f"note: there are more than these {args.limit}; add --after {after} for the next, or a higher "
            "--limit"
        )


def check_choice(
    args: argparse.Namespace,
    *,
    chosen: bool,
    ids: Collection[object],
    ways: str,
    things: str = "messages",
) -> None:
    """Refuse a command that selects no objects to change, or gives both `--all` and ids.

    Args:
        args: Arguments of the command: `all` selects all objects.
        chosen: Whether ids or a filter are given.
        ids: The given ids.
        ways: Description of the ways to select objects, for the error.
        things: Plural noun for the objects, for the error.

    Raises:
        ConfigurationError: The selection is missing or ambiguous.
    """
    if args.all and ids:
        raise ConfigurationError(
            f"--all and {', '.join(map(str, ids))} are both given; expected one of them, so that only "
            f"the intended {things} change"
        )
    if not (chosen or args.all):
        raise ConfigurationError(f"no {things} selected; give {ways}, or --all")


def one_line_errors(command: CommandFunction) -> CommandFunction:
    """Decorate a command: print each fault of a `JmsError` on a line, and exit with code 1.

    The command can also use connections that are stored in Airflow's database. Arguments that aren't valid
    UTF-8 are refused, except for names of files and bodies.
    """

    @functools.wraps(command)
    def run(args: argparse.Namespace) -> None:
        try:
            _check_encoding(args)
            use_stored_connections()
            command(args)
        except JmsError as error:
            faults = error.faults if isinstance(error, ConfigurationError) else (str(error),)
            for fault in faults:
                is_unknown = fault == undefined_text(str(getattr(args, "conn_id", None)))
                # Airflow also reports a connection as undefined if it can't decrypt the stored values.
                way_out = (
                    "; airflow connections list shows those that are. If it is there, this process may have "
                    "another [core] fernet_key than the one that stored it"
                )
                echo(f"error: {fault}{way_out if is_unknown else ''}")
            raise SystemExit(1) from error

    return run


def _check_encoding(args: argparse.Namespace) -> None:
    """Refuse arguments that aren't valid UTF-8: neither brokers nor databases take them.

    Raises:
        ConfigurationError: Names each such argument.
    """
    faults = [
        f"{name.replace('_', '-')}: {text[:_LONGEST_SHOWN]!r} is not valid UTF-8"
        for name, value in vars(args).items()
        for text in (value if isinstance(value, list) else [value])
        if isinstance(text, str) and name not in _BYTES and not _is_encodable(text)
    ]
    if faults:
        raise ConfigurationError(faults)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
